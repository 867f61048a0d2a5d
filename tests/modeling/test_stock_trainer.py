"""transformers' own Trainer, as people use it, trains and evaluates our models as it does transformers' own.

The independent truth is the native model with the same weights under the same Trainer: losses, gradient norms, scores
and predictions are equal. Dropout is off, as its random numbers differ.
"""

import gc
import json
import os

import numpy as np
import pytest
import stock_training
import torch
import transformers
from stock_training import CASES, LABELS, SETTINGS, TASKS, make_native, make_trainer, train

from clozebert.hub import from_native

# Measured: 4e-7 of losses, gradient norms and scores, 9e-7 of the largest prediction.
TOLERANCE = 1e-5
SEQUENCES = ("single label", "several labels", "regression")


@pytest.fixture(scope="module", autouse=True)
def quick_collection():
    """Trainer collects garbage in each run; looking through all that is imported would take half of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def native_runs(tmp_path_factory):
    """Runs of native models, each once: (model type, task, setting) -> its report and arrays, and its folder."""
    known = {}

    def run(model_type, name, setting):
        settings = SETTINGS[setting][1]
        key = (model_type, name, json.dumps(settings))
        if key not in known:
            folder = tmp_path_factory.mktemp("native")
            settings = TASKS[name].settings_of_native(settings)
            result = train(make_native(model_type, name), name, folder, **settings)
            known[key] = (*result, folder)
        return known[key]

    return run


def assert_same_run(found, wanted):
    (report, arrays), (native, native_arrays) = found, wanted
    assert report["keys"] == native["keys"]
    assert report["label_names"] == native["label_names"]
    assert report["problem_type"] == native["problem_type"]
    for log, native_log in zip(report["logs"], native["logs"], strict=True):
        assert log == pytest.approx(native_log, rel=TOLERANCE)
    losses = [log["eval_loss"] for log in report["logs"] if "eval_loss" in log]
    assert losses[0] != losses[1], "training changes nothing"
    assert report["best"] == native["best"]
    assert report["evaluated_again"] == pytest.approx(native["evaluated_again"], rel=TOLERANCE)
    if report["in_order"]:
        assert report["evaluated_again"] == pytest.approx(losses[0], rel=TOLERANCE), "the best model was not loaded"
    for array, native_array in zip(arrays, native_arrays, strict=True):
        assert array.shape == native_array.shape
        assert abs(array - native_array).max() <= TOLERANCE * abs(native_array).max()


def cases_of_settings():
    """In the ordinary suite BERT and ViT with everything at once; the others are slow."""
    for setting in SETTINGS:
        for model_type, name in CASES:
            fast = model_type != "modernbert" and setting == "all"
            marks = () if fast else pytest.mark.slow
            yield pytest.param(model_type, name, setting, marks=marks, id=f"{model_type}-{name}-{setting}")


@pytest.mark.parametrize(("model_type", "name", "setting"), cases_of_settings())
def test_training_evaluating_and_predicting_as_the_native_model(model_type, name, setting, native_runs, tmp_path):
    """With accumulation and gradient checkpointing too, which the native model goes without."""
    ours = from_native(make_native(model_type, name))
    found = train(ours, name, tmp_path, **SETTINGS[setting][0])
    assert_same_run(found, native_runs(model_type, name, setting)[:2])


# Other arguments, and how far the losses may differ. Measured: 2e-3 in bf16, 4e-7 otherwise.
OTHERS = {
    "noise": ({"neftune_noise_alpha": 5.0, "optim": "adamw_torch", "learning_rate": 1e-3}, TOLERANCE),
    "bf16": ({"bf16": True}, 1e-2),
    "compiled": ({"torch_compile": True, "torch_compile_backend": "eager"}, TOLERANCE),
    "others": ({"eval_accumulation_steps": 1, "max_grad_norm": 0.1, "weight_decay": 0.3, "warmup_steps": 2}, TOLERANCE),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "name", "other"),
    [
        (*case, other)
        for case in CASES
        for other in OTHERS
        # Noise falls on each number of the embeddings, padding included, and on another module of an image model.
        if other != "noise" or case[1] not in ("question answering", "image classification")
    ],
)
def test_other_arguments(model_type, name, other, tmp_path):
    torch._dynamo.reset()
    settings, tolerance = OTHERS[other]
    native, native_settings = make_native(model_type, name), TASKS[name].settings_of_native(settings)
    wanted, _ = train(native, name, tmp_path / "native", **native_settings)
    found, _ = train(from_native(make_native(model_type, name)), name, tmp_path / "ours", **settings)
    assert found["keys"] == wanted["keys"]
    assert found["problem_type"] == wanted["problem_type"]
    for key in ("loss", "eval_loss", "test_loss"):
        losses, native_losses = ([log[key] for log in run["logs"] if key in log] for run in (found, wanted))
        assert losses == pytest.approx(native_losses, rel=tolerance)


# ------------------------------------------------------------------------------------------------- what is left behind


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_pipeline_reads_in_the_saved_folder_what_kind_of_labels_there_were(name, native_runs, tmp_path):
    """Probabilities of one label, of several, or plain numbers: nobody said which, the first labels showed it."""
    report, _ = train(from_native(make_native("bert", name)), name, tmp_path)
    wanted, _, native_folder = native_runs("bert", name, "plain")
    texts = ["w9 w10", "w11 w12 w13 w14"]
    found, expected = (
        transformers.pipeline("text-classification", str(folder / run["best"]), top_k=None)(texts)
        for folder, run in ((tmp_path, report), (native_folder, wanted))
    )
    for labels, native_labels in zip(found, expected, strict=True):
        assert [label["label"] for label in labels] == [label["label"] for label in native_labels]
        scores = [label["score"] for label in labels]
        assert scores == pytest.approx([label["score"] for label in native_labels], rel=TOLERANCE)
        if name == "single label":
            assert sum(scores) == pytest.approx(1)


IDS = torch.tensor([[2, 9, 3], [2, 8, 3]])


def test_the_labels_show_the_kind_of_problem_only_where_the_configuration_does_not_say_it():
    model = from_native(make_native("bert", "several labels"))
    model.config.problem_type = "regression"
    labels = torch.eye(2, LABELS)
    outputs = model(IDS, labels=labels)
    assert outputs.loss.item() == pytest.approx(((outputs.logits - labels) ** 2).mean().item())
    assert model.config.problem_type == "regression"


def test_one_label_of_several_is_a_whole_number():
    """After whole-number labels, too, which have shown that it is one of several."""
    model = from_native(make_native("bert", "single label"))
    model(IDS, labels=torch.tensor([1, 0]))
    with pytest.raises(ValueError, match=r"labels of type torch.float32 do not fit problem_type='single_label"):
        model(IDS, labels=torch.tensor([1.0, 0.0]))


def test_resuming_from_a_checkpoint_of_trainer_ends_as_the_run_that_was_not_stopped(tmp_path):
    """With Adam's state, and tied weights that the file holds once."""
    name = "masked lm"
    settings = {"load_best_model_at_end": False, "optim": "adamw_torch", "learning_rate": 1e-3}
    whole = make_trainer(from_native(make_native("bert", name)), name, tmp_path, **settings)
    whole.train()
    resumed = make_trainer(from_native(make_native("bert", name)), name, tmp_path, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.global_step == whole.state.global_step == 6
    wanted = whole.model.state_dict()
    for key, tensor in resumed.model.state_dict().items():
        torch.testing.assert_close(tensor, wanted[key], rtol=1e-5, atol=1e-7)


# ------------------------------------------------------------------------------------------- without the package


@pytest.fixture(scope="module")
def remote_runs(tmp_path_factory, python):
    """Every head plain and the masked LM with everything, as remote code in a process without clozebert."""
    root = tmp_path_factory.mktemp("remote")
    cases = [(model_type, name) for model_type, name in CASES if model_type != "modernbert"]
    for model_type, name in cases:
        from_native(make_native(model_type, name)).save_pretrained(root / name)
    wanted = [(name, "plain") for _, name in cases] + [("masked lm", "all")]
    environment = {**os.environ, "HF_MODULES_CACHE": str(root / "modules")}
    done = python.run([stock_training.__file__, root, json.dumps(wanted)], env=environment, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    assert list((root / "modules" / "transformers_modules").rglob("modeling*.py")), "the code came from elsewhere"
    return root


@pytest.mark.parametrize(
    ("model_type", "name", "setting"),
    [*((*case, "plain") for case in CASES if case[0] != "modernbert"), ("bert", "masked lm", "all")],
)
def test_remote_code_trains_as_the_native_model(model_type, name, setting, remote_runs, native_runs):
    folder = remote_runs / f"{name}-{setting}"
    report = json.loads((folder / "report.json").read_text())
    assert report["module"].startswith("transformers_modules.")
    with np.load(folder / "arrays.npz") as stored:
        arrays = [stored[key] for key in stored.files]
    assert_same_run((report, arrays), native_runs(model_type, name, setting)[:2])
    assert report["saved"] == pytest.approx(report["evaluated_again"], rel=TOLERANCE)
