"""The model side of fine-tuning: heads for new labels, layers, rates, dropout, adapters; its device."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from clozebert import ClozeBertConfig
from clozebert.finetuning import models
from clozebert.finetuning.arguments import PredictionArguments
from clozebert.finetuning.batches import PackedCollator
from clozebert.finetuning.data import TASKS
from clozebert.finetuning.models import (
    DEFAULT_DROPOUT,
    add_lora,
    compares_pairs,
    depth_of_parameters,
    encoder_layers,
    freeze_layers,
    has_post_norm,
    known_label_names,
    load_classifier,
    load_config,
    load_fine_tuned,
    output_layer,
    prefer_plain_attention,
)
from clozebert.finetuning.optimizer import parameter_groups, scale_output_gradient
from clozebert.finetuning.predict import predict
from clozebert.finetuning.resume import read_settings
from clozebert.finetuning.run import FinetuningRun, finetune
from clozebert.finetuning.sequence_task import (
    REGRESSION,
    SINGLE_LABEL,
    SequenceExample,
    SequenceTask,
    make_sequence_task,
)
from clozebert.finetuning.tags import TaggedSentence
from clozebert.finetuning.token_task import TokenTask, make_token_task
from clozebert.utils.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[1]))
from finetuning_helpers import arguments_of, make_checkpoint


def load(folder: str, names: Sequence[str] = ("a", "b", "c"), **kwargs: Any) -> Any:
    return load_classifier(folder, task=SequenceTask(problem_type=SINGLE_LABEL, label_names=names), **kwargs)


@pytest.mark.parametrize(
    ("separator", "wanted", "compares"), [(3, None, True), (3, True, True), (3, False, False), (None, None, False)]
)
def test_a_new_head_compares_pairs(tmp_path: Path, separator: int | None, wanted: bool | None, compares: bool) -> None:
    folder = make_checkpoint(tmp_path / "m", model_type="clozebert")
    model = load(folder, separator=separator, compare_pairs=wanted)
    assert compares_pairs(model) == (model.comparison is not None) == compares
    assert model.config.sep_token_id == (separator if compares else None)
    model.save_pretrained(tmp_path / "tuned")
    again = load(str(tmp_path / "tuned"), separator=separator)  # a head that is trained further stays as it is
    assert compares_pairs(again) == compares
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    assert not compares_pairs(load(str(tmp_path / "tuned"))), "of single texts"
    assert compares_pairs(load(str(tmp_path / "tuned"), ("d", "e"), separator=3)), "a new head for other labels"


def test_pairs_that_cannot_be_compared(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "m", model_type="bert")
    assert not compares_pairs(load(folder, separator=3))
    with pytest.raises(ValueError, match="only ClozeBERT models compare pairs, and this is bert; convert it first"):
        load(folder, separator=3, compare_pairs=True)


def test_files_of_other_programs_beside_a_model_do_not_matter(tmp_path: Path) -> None:
    """all-MiniLM-L6-v2 has a list in data_config.json, and sentence-transformers other settings beside it."""
    folder = make_checkpoint(tmp_path / "m")
    (tmp_path / "m" / "data_config.json").write_text('[{"name": "reddit", "lines": 1}]')
    assert load(folder).config.num_labels == 3
    (tmp_path / "m" / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json must hold an object, not list"):
        load(folder)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "clozebert"])
def test_a_model_without_its_tokenizer(tmp_path: Path, model_type: str) -> None:
    """For most kinds, transformers makes a tokenizer that knows nothing."""
    folder = make_checkpoint(tmp_path / "m", model_type=model_type)
    models.load_auto_tokenizer(folder, None)
    for path in [*Path(folder).glob("*token*"), *Path(folder).glob("vocab*"), *Path(folder).glob("merges*")]:
        path.unlink()
    with pytest.raises(UserError, match=r"m: (it holds )?no tokenizer"):
        models.load_auto_tokenizer(folder, None)


def test_the_folder_of_a_model_has_no_say_in_how_it_answers(tmp_path: Path) -> None:
    folder = Path(make_checkpoint(tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text())
    says = {"return_dict": False, "output_hidden_states": True, "output_attentions": True}
    (folder / "config.json").write_text(json.dumps({**config, **says}))
    model = load(str(folder))
    assert not any(getattr(model.config, name) is value for name, value in says.items())
    model.save_pretrained(tmp_path / "again")


MODEL_TYPES = ("bert", "roberta", "distilbert", "clozebert")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_what_the_model_side_finds_in_each_architecture(tmp_path: Path, model_type: str) -> None:
    folder = make_checkpoint(tmp_path / "m", model_type=model_type)
    model = load(folder)
    head = output_layer(model)
    assert head is not None
    assert head.out_features == 3
    assert len(encoder_layers(model)) == 2
    depths = depth_of_parameters(model)
    assert set(depths.values()) == {0, 1, 2, 3}
    assert all(depth == 0 for name, depth in depths.items() if "embeddings" in name)
    assert all(depth == 3 for name, depth in depths.items() if name.startswith("classifier"))
    freeze_layers(model, 1)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, depth in depths.items() if depth <= 1}
    with pytest.raises(ValueError, match="--freeze_layers 9: the model has 2 layers"):
        freeze_layers(model, 9)


SIZES = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
OF_XLM = {"vocab_size": 40, "emb_dim": 24, "n_layers": 2, "n_heads": 3}
OF_FUNNEL = {"vocab_size": 40, "block_sizes": [1, 2], "d_model": 24, "n_head": 3, "d_head": 8, "d_inner": 40}
# Registered before the encoder; layers in several lists; a list of lists; an embedding behind the layers.
UNUSUAL = [
    ("XLMRobertaFor{}Classification", "XLMRobertaConfig", SIZES, 2),
    ("CamembertFor{}Classification", "CamembertConfig", SIZES, 2),
    ("XLMFor{}Classification", "XLMConfig", OF_XLM, 2),
    ("FunnelFor{}Classification", "FunnelConfig", OF_FUNNEL, 3),
    ("MPNetFor{}Classification", "MPNetConfig", SIZES, 2),
    ("DebertaV2For{}Classification", "DebertaV2Config", {**SIZES, "relative_attention": True}, 2),
]


@pytest.mark.parametrize("task", ["Sequence", "Token"])
@pytest.mark.parametrize(("name", "config", "sizes", "num_layers"), UNUSUAL)
def test_layers_and_heads_are_told_apart_however_they_are_stored(
    name: str, config: str, sizes: dict[str, Any], num_layers: int, task: str
) -> None:
    """With as many labels as a layer has rows, the head is still what lies outside the encoder."""
    made = getattr(transformers, config)(**sizes, num_labels=24)
    model = getattr(transformers, name.format(task))(made)
    head, base = output_layer(model), model.base_model
    assert head is not None
    assert head not in set(base.modules())
    depths = depth_of_parameters(model)
    assert set(depths.values()) == set(range(num_layers + 2))
    inside = {f"{model.base_model_prefix}.{key}" for key, _ in base.named_parameters()}
    assert all(depths[key] == num_layers + 1 for key in depths if key not in inside)
    freeze_layers(model, num_layers)
    trained = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    # The decoder of Funnel, and the norm of relative positions in DeBERTa, come behind the layers.
    assert not [key for key in trained & inside if "decoder" not in key and "encoder.LayerNorm" not in key]
    assert trained - inside


def test_models_of_other_layers_are_understood_or_refused() -> None:
    pytest.importorskip("peft")
    quantised = transformers.IBertForSequenceClassification(transformers.IBertConfig(**SIZES))
    models.check_tokenizer_fits(quantised, range(40))
    with pytest.raises(UserError, match="has 41 tokens, the model's vocabulary only 40"):
        models.check_tokenizer_fits(quantised, range(41))
    convolutions = transformers.SqueezeBertConfig(**{**SIZES, "num_attention_heads": 4, "embedding_size": 24})
    with pytest.raises(UserError, match=r"--lora_rank 2: the layers of SqueezeBert.* have no linear layer"):
        add_lora(transformers.SqueezeBertForSequenceClassification(convolutions), rank=2)


def test_groups_have_rates_by_depth_and_no_decay_of_vectors(tmp_path: Path) -> None:
    model = load(make_checkpoint(tmp_path / "m"))
    groups = parameter_groups(model, learning_rate=1.0, weight_decay=0.1, layer_decay=0.5)
    by_id = {id(p): group for group in groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        group = by_id[id(parameter)]
        assert group["weight_decay"] == (0.1 if parameter.dim() > 1 else 0.0)
        depth = depth_of_parameters(model)[name]
        assert group["lr"] == 0.5 ** (3 - depth)


def regression(mean: float, scale: float) -> SequenceTask:
    return SequenceTask(problem_type=REGRESSION, label_names=["v"], target_mean=mean, target_scale=scale)


@pytest.mark.parametrize("scale", [40.0, 4e9, 4e-8])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_regression_in_its_own_unit_trains_like_one_of_standardised_values(
    tmp_path: Path, model_type: str, lora: bool, scale: float
) -> None:
    """Three steps on (value - mean) / scale, and three on the values themselves, give the same function.

    With the output layer's gradient unscaled, epsilon kept it from learning values of 1e8 and more, and clipping kept
    the encoder from learning values below 1e-5.
    """
    if lora:
        pytest.importorskip("peft")
    folder = make_checkpoint(tmp_path / "m", model_type=model_type)
    mean = 6.25 * scale
    ids = torch.tensor([[2, 7, 8, 3], [2, 9, 10, 3]])
    values = torch.tensor([7.5, 7.75]) * scale  # both above the mean, so the bias must move
    outputs = []
    for task in (regression(0.0, 1.0), regression(mean, scale)):
        torch.manual_seed(0)
        model = load_classifier(folder, task=task, dropout=0.0)
        model = add_lora(model, rank=2) if lora else model
        scale_output_gradient(model, task.target_scale)
        groups = parameter_groups(model, learning_rate=3e-3, weight_decay=0.01, output_scale=task.target_scale)
        optimizer = torch.optim.AdamW(groups)
        for _ in range(3):
            optimizer.zero_grad()
            task.loss(model(input_ids=ids), (values - mean) / scale).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        with torch.no_grad():
            raw = model(input_ids=ids)["logits"][:, 0]
        outputs.append(raw if task.target_scale == scale else raw * scale + mean)
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=2.5e-4 * scale)
    assert (outputs[0] - mean).abs().max() > 2.5e-3 * scale


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_values_that_lie_close_together_are_told_apart_in_bf16(tmp_path: Path, model_type: str, lora: bool) -> None:
    """Years, say: bf16 rounds numbers near 2,000 to multiples of 8.

    Measured: 1.1e-4 of the deviation at most, on a CPU with bf16 in hardware.
    """
    if lora:
        pytest.importorskip("peft")
    model: Any = load_classifier(
        make_checkpoint(tmp_path / "m", model_type=model_type), task=regression(2001.3, 8.0), dropout=0.0
    ).eval()
    model = add_lora(model, rank=2) if lora else model
    ids = torch.tensor([[2, 7, 8, 3], [2, 9, 10, 3]])
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        with torch.autocast("cpu", torch.bfloat16):
            found = model(input_ids=ids).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * 8.0)


def test_the_output_layer_of_a_trained_regression_is_kept_near_its_values(tmp_path: Path) -> None:
    model = load_classifier(make_checkpoint(tmp_path / "m"), task=regression(250.0, 40.0))
    model.save_pretrained(tmp_path / "tuned")
    again: Any = load_classifier(str(tmp_path / "tuned"), task=regression(235.0, 7.0))
    torch.testing.assert_close(again.classifier.weight, model.classifier.weight, rtol=0, atol=0)
    assert again.classifier.bias.tolist() == [250.0]
    far: Any = load_classifier(str(tmp_path / "tuned"), task=regression(100.0, 7.0))
    assert far.classifier.bias.tolist() == [100.0]
    assert [one.drops_head for one in (model, again, far)] == [False, False, True]


def test_a_trained_regression_is_kept_whatever_its_value_is_called(tmp_path: Path) -> None:
    model = load_classifier(make_checkpoint(tmp_path / "m"), task=regression(250.0, 40.0))
    model.config.id2label = {0: "LABEL_0"}
    model.save_pretrained(tmp_path / "tuned")
    again: Any = load_classifier(str(tmp_path / "tuned"), task=regression(250.0, 40.0))
    torch.testing.assert_close(again.classifier.weight, model.classifier.weight, rtol=0, atol=0)
    assert (again.drops_head, again.config.id2label) == (False, {0: "v"})


@pytest.mark.parametrize("model_type", ["roberta", "clozebert"])
def test_a_model_of_one_token_type_reads_pairs_of_a_tokenizer_that_gives_two(tmp_path: Path, model_type: str) -> None:
    folder = make_checkpoint(tmp_path / "m", model_type=model_type, type_vocab_size=1)
    settings = Path(folder, "tokenizer_config.json")
    names = ["input_ids", "token_type_ids", "attention_mask"]
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "model_input_names": names}))
    path = tmp_path / "pairs.csv"
    path.write_text(
        "sentence1,sentence2,label\n" + "".join(f"film,end {number},{number % 2}\n" for number in range(20))
    )
    finetune(arguments_of("pairs", (str(path), str(path)), folder, tmp_path / "o", max_steps=1))
    given = PredictionArguments(
        model_name_or_path=str(tmp_path / "o"), input=[str(path)], output_file=str(tmp_path / "p.jsonl")
    )
    assert predict(given) == 20
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "o"))
    assert pipeline({"text": "film", "text_pair": "end"})


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_dropout_is_for_training_only(tmp_path: Path, model_type: str) -> None:
    folder = make_checkpoint(tmp_path / "m", model_type=model_type)

    def rates(**given: float | None) -> set[float]:
        model = load(folder, "ab", **given)
        found = {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}
        model.config.update(model.dropout_before)
        saved, before = model.config.to_dict(), load_config(folder).to_dict()
        assert {name: saved[name] for name in saved if "dropout" in name} == {
            name: before[name] for name in before if "dropout" in name
        }
        return found

    if model_type != "distilbert":  # its classifier has 0.2 of its own, so nothing is changed
        assert rates() - {0.0} == {DEFAULT_DROPOUT}  # 0 inside the feed-forward
    assert rates(dropout=0.3) == {0.3}
    assert rates(dropout=0.0) <= {0.0}


def test_dropout_of_the_embeddings_is_set_with_the_rest(tmp_path: Path) -> None:
    folder = Path(make_checkpoint(tmp_path / "m", model_type="clozebert"))
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "embedding_dropout": 0.5}))
    for dropout in (0.0, 0.3):
        model = load(str(folder), "ab", dropout=dropout)
        assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {dropout}


def test_on_cuda_attention_has_no_dropout_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fastest kernel knows none. What is asked for stands."""
    folder = make_checkpoint(tmp_path / "m", model_type="clozebert")

    def find_device(*, use_cpu: bool) -> torch.device:
        return torch.device("cpu" if use_cpu else "cuda")

    monkeypatch.setattr(models, "find_device", find_device)
    assert load(folder, "ab", use_cpu=True).config.attention_probs_dropout_prob == DEFAULT_DROPOUT
    for given, wanted in ((None, 0.0), (0.2, 0.2)):
        config = load(folder, "ab", dropout=given).config
        assert config.attention_probs_dropout_prob == wanted
        assert config.hidden_dropout_prob == (DEFAULT_DROPOUT if given is None else given)


@pytest.mark.parametrize(("model_type", "expected"), [("bert", "eager"), ("roberta", "eager"), ("clozebert", "sdpa")])
def test_plain_attention_is_the_same_function_and_not_saved(tmp_path: Path, model_type: str, expected: str) -> None:
    model = load(make_checkpoint(tmp_path / "m", model_type=model_type)).eval()
    inputs = {"input_ids": torch.tensor([[2, 7, 8, 9, 3]]), "attention_mask": torch.tensor([[1, 1, 1, 1, 0]])}
    before = model(**inputs).logits
    assert model.config._attn_implementation == "sdpa"
    prefer_plain_attention(model)
    assert model.config._attn_implementation == expected
    torch.testing.assert_close(model(**inputs).logits, before, rtol=1e-5, atol=1e-6)
    model.save_pretrained(tmp_path / "tuned")
    assert "attn" not in (tmp_path / "tuned" / "config.json").read_text().replace("attn_pdrop", "")


def test_a_head_for_classes_with_transformers_own_names_is_kept(tmp_path: Path) -> None:
    """An encoder has such names as well, without a head for them."""
    names = ["LABEL_0", "LABEL_1"]
    encoder = make_checkpoint(tmp_path / "m")
    assert known_label_names(load_config(encoder), SequenceTask) is None
    model = load(encoder, names=names)
    model.save_pretrained(tmp_path / "tuned")
    assert known_label_names(load_config(str(tmp_path / "tuned")), SequenceTask) == names
    again = load(str(tmp_path / "tuned"), names=names)
    torch.testing.assert_close(again.classifier.weight, model.classifier.weight, rtol=0, atol=0)
    other = load(str(tmp_path / "tuned"), names=["no", "yes"])
    assert not torch.allclose(other.classifier.weight, model.classifier.weight)


def test_label_order_of_a_fine_tuned_model_is_kept_and_its_head_too(tmp_path: Path) -> None:
    model = load(make_checkpoint(tmp_path / "m"), names=("z", "a", "m"))
    model.save_pretrained(tmp_path / "tuned")
    known = known_label_names(model.config, SequenceTask)
    assert known == ["z", "a", "m"]
    assert known_label_names(model.config, TokenTask) is None
    examples = [SequenceExample("t", None, label, "f") for label in ("a", "z")]
    task = make_sequence_task(examples, problem_type=SINGLE_LABEL, value_name="v", known_names=known)
    assert task.label_names == ["z", "a", "m"]
    again = load(str(tmp_path / "tuned"), names=("z", "a", "m"))
    torch.testing.assert_close(again.classifier.weight, model.classifier.weight)
    # other names, the same number: the old head means something else and must not be kept
    other = load(str(tmp_path / "tuned"), names=("x", "y", "w"))
    assert not torch.allclose(other.classifier.weight, model.classifier.weight)
    assert load(str(tmp_path / "tuned"), names=("x", "y")).classifier.out_features == 2
    tuned, task_of_tuned = load_fine_tuned(str(tmp_path / "tuned"), TASKS.values(), settings={})
    assert tuned.config.id2label == {0: "z", 1: "a", 2: "m"}
    assert (task_of_tuned.task_type, task_of_tuned.label_names) == ("sequence", ["z", "a", "m"])


def test_tag_order_of_a_fine_tuned_model_is_kept() -> None:
    sentence = TaggedSentence(["a", "b"], [False, True], ["B-X", "O"], "f", 1)
    names = ["I-X", "B-X", "O"]
    assert make_token_task([sentence], scheme="iob2", known_names=names).label_names == names
    assert make_token_task([sentence], scheme="iob2", known_names=["O", "B-Y"]).label_names == ["O", "B-X", "I-X"]
    # Names of another scheme, or without one, cover the tags and are none of entities.
    for more in ("E-X", "S-X", "[CLS]"):
        task = make_token_task([sentence], scheme="iob2", known_names=[*names, more])
        assert task.label_names == ["O", "B-X", "I-X"]
    assert make_token_task([sentence], scheme="plain", known_names=[*names, "E-X"]).label_names[3:]


def test_weights_of_the_encoder_that_are_missing_are_an_error(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(make_checkpoint(tmp_path / "m"))
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if "layer.1." not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="lacks 16 weights of the encoder"):
        load(str(folder))


def test_tags_are_what_the_run_took_them_for() -> None:
    config = transformers.AutoConfig.for_model("bert", id2label={0: "O", 1: "B-X", 2: "I-X"})
    assert TokenTask.of_config(config, {}).entities
    assert TokenTask.of_config(config, {"tag_scheme": "iob2"}).entities
    assert not TokenTask.of_config(config, {"tag_scheme": "plain"}).entities


def test_settings_of_other_people_are_checked(tmp_path: Path) -> None:
    (tmp_path / "finetuning_settings.json").write_text('{"max_seq_length": "long"}')
    with pytest.raises(ValueError, match="max_seq_length='long' must be a whole number"):
        read_settings(str(tmp_path))


def test_answers_that_names_would_hide_are_refused(tmp_path: Path) -> None:
    folder = Path(make_checkpoint(tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["BertForSequenceClassification"]}
    (folder / "config.json").write_text(json.dumps(config | {"id2label": {"0": "a", "1": "b", "2": "a"}}))
    with pytest.raises(UserError, match="two of its classes are named 'a'; rename one in the id2label"):
        load_fine_tuned(str(folder), TASKS.values(), settings={})
    several = transformers.AutoConfig.for_model("bert", num_labels=3, problem_type="regression")
    with pytest.raises(UserError, match="the model gives 3 values for each text"):
        SequenceTask.of_config(several, {})


def test_a_folder_without_a_model_is_an_error_that_says_where_one_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no config\.json; give the folder of a whole model"):
        load_config(str(tmp_path))
    make_checkpoint(tmp_path / "seed-1")
    with pytest.raises(ValueError, match=r"give a folder of a model, such as .*seed-1"):
        load_config(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="it is an adapter of PEFT: load it with its base model, call merge"):
        load_config(str(tmp_path))


def test_a_model_that_is_not_fine_tuned_cannot_predict(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it is BertForMaskedLM, which gives no labels; fine-tune it first"):
        load_fine_tuned(make_checkpoint(tmp_path / "m"), TASKS.values(), settings={})
    with pytest.raises(ValueError, match="there is no such folder"):
        load_fine_tuned(str(tmp_path / "gone"), TASKS.values(), settings={})


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_lora_trains_adapters_and_head_only(tmp_path: Path, model_type: str) -> None:
    pytest.importorskip("peft")
    model = add_lora(load(make_checkpoint(tmp_path / "m", model_type=model_type)), rank=2)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert any("lora_A" in name for name in trained)
    parts = ("lora_", "classifier", "head", "pooler")
    assert all(any(part in name for part in parts) for name in trained), trained
    assert any("pooler" in name for name in trained) == (model_type == "bert")  # pretraining leaves none
    merged = model.merge_and_unload()  # type: ignore[operator]
    assert not any("lora" in name for name, _ in merged.named_parameters())


def test_one_process_uses_one_of_several_gpus(
    models: dict[str, str], data: dict[str, tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else Trainer would make the batches of all four: four times as large, as well as the loss."""

    class SeenError(Exception):
        pass

    def stop(run: FinetuningRun, write_card: Any) -> None:
        raise SeenError(run)

    # Trainer finds its own.
    monkeypatch.setattr("clozebert.finetuning.run.find_device", lambda **_: torch.device("mps"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(FinetuningRun, "train", stop)
    with pytest.raises(SeenError) as seen:
        finetune(arguments_of("single", data["single"], models["clozebert"], tmp_path, per_device_train_batch_size=4))
    run = seen.value.args[0]
    assert (run.training.n_gpu, run.training.train_batch_size) == (1, 4)
    assert isinstance(run.collator, PackedCollator)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (transformers.BertConfig(), True),
        (transformers.ModernBertConfig(), False),
        (ClozeBertConfig.from_name("bert-base"), True),
        (ClozeBertConfig.from_name("modernbert-base"), False),
    ],
)
def test_where_the_norms_are(config: Any, expected: bool) -> None:
    assert has_post_norm(config) is expected
