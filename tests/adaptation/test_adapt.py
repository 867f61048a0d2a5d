"""`adapt` from end to end: the architecture that came in, the report, going on, and what is refused before work."""

import json
import math
import random
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from often import often
from safetensors.torch import load_file
from small_models import adapt_flags, make_tokenizer, old_documents, run, save_native
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForSequenceClassification,
    BertTokenizerFast,
)

from clozebert.adaptation import adapt as adapt_module
from clozebert.adaptation.adapt import adapt
from clozebert.adaptation.arguments import AdaptationArguments
from clozebert.adaptation.report import warnings_of
from clozebert.corpus import Corpus
from clozebert.corpus.packing import RowIndex
from clozebert.training import loop, pretrain
from clozebert.training.planning import calibration
from clozebert.training.planning.time_budget import Deadline
from clozebert.utils.errors import UserError
from clozebert.utils.locks import lock_folder
from clozebert.utils.tokenizer_files import save_tokenizer


def test_a_model_whose_tokenizer_lacks_its_file_is_refused(bert: Path, texts: Path, tmp_path: Path) -> None:
    model = shutil.copytree(bert, tmp_path / "model")
    (model / "tokenizer.json").unlink()
    said = f"model_name_or_path='{model}' holds no tokenizer.json and no older vocabulary, such as vocab.txt: put"
    with pytest.raises(UserError, match=said):
        run(model, texts / "new.txt", tmp_path / "out")


def test_a_model_that_is_gone_at_the_end_leaves_its_card_and_no_path(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_native(tmp_path / "models" / "model", "bert")
    terms = "license: other\nlicense_name: acme\nlicense_link: LICENSE\ntags:\n- medical\n"
    (model / "README.md").write_text(f"---\n{terms}---\n")
    (model / "LICENSE").write_text("Terms of Acme")

    def forget_and_train(*given: Any, **options: Any) -> Any:
        shutil.rmtree(model)
        return pretrain(*given, **options)

    monkeypatch.setattr(adapt_module, "pretrain", forget_and_train)
    results = run(model, texts / "new.txt", tmp_path / "out", max_steps=2)
    assert results["model"] == "model"
    card = (tmp_path / "out" / "README.md").read_text()
    assert terms.partition("tags")[0] in card
    assert "- medical" in card
    assert (tmp_path / "out" / "LICENSE").read_text() == "Terms of Acme"
    assert "base_model" not in card
    assert str(tmp_path) not in card + (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize("model_type", often(["roberta", "modernbert", "bert"], 2))
def test_the_architecture_that_came_in_comes_out(model_type: str, texts: Path, tmp_path: Path) -> None:
    model = save_native(tmp_path / model_type, model_type)
    old, general = old_documents(), tmp_path / "general.txt"
    general.write_text("\n\n".join(old[60:]) + "\n")
    (tmp_path / "replay.txt").write_text("\n\n".join(old[:60]) + "\n")
    results = run(
        model, texts / "new.txt", tmp_path / "out", max_steps=30, extend_vocabulary=15,
        replay_input=[str(tmp_path / "replay.txt")], general_input=[str(general)],
        protect=[str(texts / "new.txt")],
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    adapted = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert adapted.config.model_type == model_type
    assert type(adapted).__module__.startswith("transformers.models.")
    assert type(AutoModel.from_pretrained(tmp_path / "out")).__module__.startswith("transformers.models.")
    assert len(tokenizer) == adapted.config.vocab_size == results["vocabulary"]["after"]
    assert len(tokenizer) == results["vocabulary"]["before"] + 15
    before = AutoTokenizer.from_pretrained(model)
    cut = {stage: texts["new"]["tokens_per_word"] for stage, texts in results["evaluation"].items()}
    assert cut["after"] == cut["start"] < 0.9 * cut["before"]
    assert tokenizer("window")["input_ids"] == before("window")["input_ids"]
    losses = {stage: texts["new"]["eval_loss"] for stage, texts in results["evaluation"].items()}
    assert losses["after"] < losses["start"] - 0.5
    report, card = ((tmp_path / "out" / name).read_text() for name in ("report.md", "README.md"))
    assert f"{losses['after']:.4f}" in report
    assert f"{results['evaluation']['after']['new']['loss_per_word']:.6g}" in card
    assert "| new.txt |" in report
    assert "held-out new text: tokens per word" in report
    predicted = results["evaluation"]["after"]["new"]["eval_predicted_tokens"]
    assert "| held-out new text: predicted tokens | " in report
    assert f" | {predicted:,} |" in report
    assert str(tmp_path) not in report + card


def test_an_adaptation_that_was_cut_off_goes_on_to_the_same_weights(
    bert: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: dict[str, Any] = {"max_steps": 5, "save_steps": 2}
    whole = run(bert, texts / "new.txt", tmp_path / "whole", **flags)
    seed_step = loop.seed_step

    def cut_off(seed: int, step: int, *others: Any) -> None:
        if step == 3:
            raise RuntimeError("cut off")
        seed_step(seed, step, *others)

    monkeypatch.setattr(loop, "seed_step", cut_off)
    with pytest.raises(RuntimeError, match="cut off"):
        run(bert, texts / "new.txt", tmp_path / "parts", **flags)
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    monkeypatch.setattr(loop, "seed_step", seed_step)
    parts = run(bert, texts / "new.txt", tmp_path / "parts", **flags)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert whole["evaluation"] == parts["evaluation"]
    # Finished, it is left alone; with other flags it is refused.
    assert run(bert, texts / "new.txt", tmp_path / "parts", **flags) == json.loads(
        (tmp_path / "parts" / "adaptation_results.json").read_text()
    )
    with pytest.raises(UserError, match="holds an adaptation with max_steps=5, and here it is 6"):
        run(bert, texts / "new.txt", tmp_path / "parts", **{**flags, "max_steps": 6})
    assert parts["seconds"] > parts["train_seconds"]


def test_it_measures_on_the_device_that_trains(
    bert: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a Mac: it trained there on the GPU, but measured before and after on the CPU."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for use_cpu, kind in ((False, "mps"), (True, "cpu")):
        flags = adapt_flags(bert, texts / "new.txt", tmp_path / kind, use_cpu=use_cpu)
        assert adapt_module.Adaptation(AdaptationArguments(**flags), print).device.type == kind


def test_the_seconds_are_those_of_the_whole_command(
    bert: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)

    def train_and_save(*given: Any, **options: Any) -> Any:
        clock.now += 1000  # timing steps, evaluations and checkpoints are no training steps
        return pretrain(*given, **options)

    monkeypatch.setattr(adapt_module, "time", clock)
    monkeypatch.setattr(adapt_module, "pretrain", train_and_save)
    results = run(bert, texts / "new.txt", tmp_path / "out", max_steps=2)
    assert results["train_seconds"] < 1000 <= results["seconds"]


def test_an_adaptation_goes_on_wherever_its_folder_and_its_texts_lie(
    bert: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(bert, texts / "new.txt", tmp_path / "whole", num_train_epochs=1.0, max_steps=None)
    run(bert, texts / "new.txt", tmp_path / "one", num_train_epochs=1.0, max_steps=None, prepare_only=True)
    (tmp_path / "one").rename(tmp_path / "other")
    shutil.copytree(bert, tmp_path / "bert")
    shutil.copyfile(texts / "new.txt", tmp_path / "new.txt")
    monkeypatch.chdir(tmp_path)
    moved = run(Path("bert"), Path("./new.txt"), Path("other/"), num_train_epochs=1.0, max_steps=None)
    assert moved["evaluation"] == whole["evaluation"]
    rows = RowIndex(Corpus(tmp_path / "other" / "adaptation" / "corpus"), max_seq_length=48).num_rows
    assert moved["steps"] == math.ceil(rows / 4)  # a pass is all rows
    with pytest.raises(UserError, match="holds an adaptation with protect=None, and here it is"):
        run(Path("bert"), Path("new.txt"), Path("other"), num_train_epochs=1.0, max_steps=None, protect=["new.txt"])


def test_from_python_paths_and_a_single_text_are_taken(bert: Path, texts: Path, tmp_path: Path) -> None:
    flags = adapt_flags(bert, texts / "new.txt", tmp_path / "out", student="1")
    given = AdaptationArguments(
        **flags | {"model_name_or_path": bert, "input": texts / "new.txt", "output_dir": tmp_path / "out", "student": 1}
    )
    assert given == AdaptationArguments(**flags)
    assert given.input == [str(texts / "new.txt")]
    json.dumps(given.settings)


@pytest.mark.parametrize(("most", "processes", "rows"), [(24, 1, 16), (24, 2, 16), (5, 2, 4), (100, 1, 64)])
def test_a_micro_batch_has_at_most_the_rows_of_the_flag(most: int, processes: int, rows: int) -> None:
    arguments = AdaptationArguments("model", "out", input=["new.txt"], per_device_train_batch_size=most)
    run = arguments.for_pretraining(hidden_size=768, rows=64, processes=processes, max_seq_length=128)
    assert run.rows_at_once(processes) == rows


@pytest.mark.parametrize(("most", "processes", "step"), [(32, 1, 64), (24, 1, 64), (32, 5, 65), (8, 5, 70), (8, 3, 72)])
def test_processes_and_their_micro_batches_share_the_rows_of_a_step(most: int, processes: int, step: int) -> None:
    arguments = AdaptationArguments("model", "out", input=["new.txt"], per_device_train_batch_size=most)
    rows = arguments.rows_for_processes(64, processes)
    run = arguments.for_pretraining(hidden_size=768, rows=rows, processes=processes, max_seq_length=128)
    assert rows == step
    assert run.rows_at_once(processes) > min(most, rows // processes) / 2


def test_text_that_changed_since_is_no_going_on(bert: Path, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    shutil.copyfile(texts / "new.txt", tmp_path / "text" / "one.txt")
    said: list[str] = []
    flags = adapt_flags(bert, tmp_path / "text", tmp_path / "out", extend_vocabulary=5000)
    adapt(AdaptationArguments(**flags), say=said.append)
    assert any("extend_vocabulary=5000: nothing else in the text" in line for line in said)
    assert any(line.startswith("held-out new text: its loss is a mean over only ") for line in said)
    old = (tmp_path / "text" / "one.txt").read_text()
    (tmp_path / "text" / "one.txt").write_text(old.replace("the ", "thy "))  # as long as before
    with pytest.raises(UserError, match="holds an adaptation with another input: its content has"):
        adapt(AdaptationArguments(**flags), say=said.append)


def test_the_report_counts_unknown_tokens(bert: Path, texts: Path, tmp_path: Path) -> None:
    """They are not predicted, so a loss is not of them."""
    general = tmp_path / "general.txt"
    general.write_text((texts / "old.txt").read_text().replace("the ", "μῆνιν "))
    found = run(bert, texts / "new.txt", tmp_path / "out", general_input=[str(general)])["evaluation"]["after"]
    tokenizer = AutoTokenizer.from_pretrained(bert)
    ids = tokenizer(general.read_text(), add_special_tokens=False)["input_ids"]
    share = ids.count(tokenizer.unk_token_id) / len(ids)
    assert share > 0.01
    assert found["general"]["unknown_share"] == pytest.approx(share)
    assert found["new"]["unknown_share"] == 0
    report = (tmp_path / "out" / "report.md").read_text()
    assert report.count("unknown tokens, not predicted") == 1
    assert f"| general text: unknown tokens, not predicted | {share:.2%} | {share:.2%} |" in report


def test_a_model_that_changed_since_is_no_going_on(texts: Path, tmp_path: Path) -> None:
    model = save_native(tmp_path / "model", "bert")
    run(model, texts / "new.txt", tmp_path / "out")
    save_native(tmp_path / "model", "bert", initializer_range=0.03)
    with pytest.raises(UserError, match="holds an adaptation with another model_name_or_path: its content has"):
        run(model, texts / "new.txt", tmp_path / "out")


def test_the_folder_takes_the_command_that_mends_a_mistake(bert: Path, texts: Path, tmp_path: Path) -> None:
    new, out = texts / "new.txt", tmp_path / "out"
    with pytest.raises(UserError, match=r"every document of input=.* is in --validation_input too"):
        run(bert, new, out, validation_input=[str(new)])
    bad = tmp_path / "bad.txt"
    bad.write_bytes(new.read_bytes() + b"\n\n\xff\xfe\xff")
    with pytest.raises(UserError, match="UTF-8"):
        run(bert, bad, out)
    bad.write_bytes(new.read_bytes())
    timed: dict[str, Any] = {"max_steps": None, "global_batch_size": None}
    with pytest.raises(UserError, match="was used up before training"):
        run(bert, bad, out, max_minutes=1e-6, **timed)
    prepared = (out / "adaptation" / "corpus" / "train" / "manifest.json").stat().st_mtime_ns
    assert run(bert, bad, out, max_minutes=0.1, **timed)["steps"] >= 1
    assert (out / "adaptation" / "corpus" / "train" / "manifest.json").stat().st_mtime_ns == prepared


def test_a_run_outlives_a_preparation_that_cannot_be_read_again(bert: Path, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    whole = run(bert, texts / "new.txt", out)
    (out / "adaptation_results.json").unlink()  # stopped before its end
    kept = (tokenizer := out / "adaptation" / "start" / "tokenizer.json").read_bytes()
    tokenizer.write_text("{}")
    with pytest.raises(UserError, match="cannot be loaded"):
        run(bert, texts / "new.txt", out)
    tokenizer.write_bytes(kept)
    assert run(bert, texts / "new.txt", out)["evaluation"] == whole["evaluation"]
    (out / "model.safetensors").unlink()
    run(bert, texts / "new.txt", out)  # is not finished already
    assert (out / "model.safetensors").is_file()


def test_overwriting_waits_for_the_program_that_is_there(
    bert: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(bert, texts / "new.txt", tmp_path / "out")
    before = (tmp_path / "out" / "adaptation" / "before.json").read_bytes()
    monkeypatch.setattr("clozebert.utils.locks._SECONDS", 0.1)
    lock = lock_folder(tmp_path / "out")
    with pytest.raises(UserError, match="is in use by another program"):
        run(bert, texts / "new.txt", tmp_path / "out", overwrite_output_dir=True)
    lock.release()
    assert (tmp_path / "out" / "adaptation" / "before.json").read_bytes() == before
    run(bert, texts / "new.txt", tmp_path / "out", overwrite_output_dir=True)


def test_several_processes_delete_nothing_that_was_prepared(
    bert: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(bert, texts / "new.txt", tmp_path / "out", prepare_only=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="would delete what was prepared for these processes: leave it out"):
        run(bert, texts / "new.txt", tmp_path / "out", overwrite_output_dir=True)
    monkeypatch.delenv("WORLD_SIZE")
    run(bert, texts / "new.txt", tmp_path / "late", prepare_only=True, max_steps=None, max_minutes=1e-6)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="less text, with --prepare_only --overwrite_output_dir first"):
        run(bert, texts / "new.txt", tmp_path / "late", max_steps=None, max_minutes=1e-6)
    assert all((tmp_path / name / "adaptation" / "before.json").is_file() for name in ("out", "late"))


def test_another_tokenizer_and_a_trimmed_vocabulary(bert: Path, texts: Path, tmp_path: Path) -> None:
    save_tokenizer(make_tokenizer("unigram"), tmp_path / "unigram")
    results = run(
        bert, texts / "new.txt", tmp_path / "out", tokenizer_name=str(tmp_path / "unigram"), trim_vocabulary=True
    )
    adapted = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(tokenizer) == adapted.config.vocab_size < 400
    assert tokenizer.decode(tokenizer("the chlorine", add_special_tokens=False)["input_ids"]) == "the chlorine"
    assert results["parameters"]["after"] != results["parameters"]["before"]
    assert "same_form" in results["vocabulary_changes"]["rows of the new tokenizer"]


def test_another_tokenizer_takes_over_the_length_and_the_inputs_of_the_model(texts: Path, tmp_path: Path) -> None:
    """In plain transformers, BERT's own tokenizer gives kinds of tokens, and more than 64, to a RoBERTa."""
    model = save_native(tmp_path / "roberta", "roberta", type_vocab_size=1)
    (tmp_path / "vocab.txt").write_text("\n".join(make_tokenizer("wordpiece").get_vocab()))
    BertTokenizerFast(str(tmp_path / "vocab.txt"), model_max_length=512).save_pretrained(tmp_path / "bert")
    run(model, texts / "new.txt", tmp_path / "out", tokenizer_name=str(tmp_path / "bert"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.model_max_length == 64
    batch = tokenizer(
        ["the cat " * 200, "a dog"], ["the house"] * 2, truncation=True, padding=True, return_tensors="pt"
    )
    assert sorted(batch) == ["attention_mask", "input_ids"]
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "out")(**batch).logits.isfinite().all()


def test_mistakes_are_one_line_before_any_work(bert: Path, texts: Path, tmp_path: Path) -> None:
    def refused(message: str, model: Path = bert, text: Path = texts / "new.txt", **changes: Any) -> None:
        with pytest.raises(UserError, match=message) as caught:
            run(model, text, tmp_path / "out", **changes)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists()

    tokenizer = AutoTokenizer.from_pretrained(bert)
    headless = tmp_path / "classifier"
    BertForSequenceClassification.from_pretrained(bert).save_pretrained(headless)
    save_tokenizer(tokenizer, headless)
    refused("holds a BertForSequenceClassification, and a masked-LM model is needed", model=headless)
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    (unknown / "config.json").write_text(json.dumps({"model_type": "t5", "architectures": ["T5Model"]}))
    refused("model_type='t5' of model_name_or_path=.*cannot be converted; these can: bert", model=unknown)
    greek = tmp_path / "greek.txt"
    greek.write_text("μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος\n" * 9)
    refused(r"of its first tokens are unknown to the model's tokenizer", text=greek)
    refused("missing.txt does not exist", text=tmp_path / "missing.txt")
    refused("extend_vocabulary=0 must be at least 1", extend_vocabulary=0)
    refused("validation_fraction=0.0 must lie between 0 and 1", validation_fraction=0.0)
    given = [str(tmp_path / "any.txt")]
    refused("validation_fraction=0.2 has no effect", validation_input=given, validation_fraction=0.2)
    prepared = {"input": None, "corpus": str(tmp_path / "corpus")}
    refused("validation_fraction=0.2 has no effect", **prepared, general_input=given, validation_fraction=0.2)
    refused("deduplicate=near has no effect: a prepared corpus stays as it is", **prepared, deduplicate="near")
    refused("on_bad_text=skip has no effect: a prepared corpus stays as it is", **prepared, on_bad_text="skip")
    refused("num_train_epochs=3.0 has no effect: max_steps=4 sets the length", num_train_epochs=3.0)
    minutes = {"max_steps": None, "max_minutes": 1.0, "num_train_epochs": 3.0}
    refused("num_train_epochs=3.0 has no effect: max_minutes=1.0 sets the length", **minutes)
    wrong = {"global_batch_size": 48, "per_device_train_batch_size": 32}
    refused("per_device_train_batch_size=32 must divide the 48 rows", **wrong)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "5")
        refused("global_batch_size=48 must be a multiple of the 5 processes", **wrong)
    refused("max_steps=0 must be at least 1", max_steps=0)
    refused("max_minutes=0.0 must be above 0", max_steps=None, max_minutes=0.0)
    refused("num_processes=0 must be at least 1", num_processes=0)
    refused("mixed_precision='fp16' needs a CUDA device", mixed_precision="fp16")
    refused("replay_share=1.5 must lie between 1/1024 and 1023/1024", replay_share=1.5)
    refused("replay_share=0.0005 must lie between 1/1024", replay_share=0.0005, replay_input=given)
    refused(
        "new.txt is in input and in validation_input", validation_input=[str(texts / "new.txt")], deduplicate="none"
    )
    refused("replay_share=0.3 needs --replay_input", replay_share=0.3)
    refused("max_seq_length=65 exceeds the 64 tokens", max_seq_length=65)
    bad, blank = tmp_path / "bad.txt", tmp_path / "blank.txt"
    bad.write_bytes(b"a line\nbad \xff line\n")
    blank.write_text("\n \n")
    for name in ("general_input", "replay_input", "protect", "validation_input"):
        refused("bad.txt, line 2: .* is not UTF-8", **{name: [str(bad)]})
        refused(rf"{name}=\['.*blank.txt'\] holds no text", **{name: [str(blank)]})
    mixed = tmp_path / "mixed"
    save_native(mixed, "bert")
    save_tokenizer(make_tokenizer("bpe"), mixed)
    refused("has embeddings for 141 tokens, and its tokenizer 340 tokens", model=mixed)


def test_a_corpus_of_another_tokenizer_is_refused(bert: Path, texts: Path, tmp_path: Path) -> None:
    from clozebert.corpus.preparation.pipeline import Preparation

    save_tokenizer(make_tokenizer("bpe"), tmp_path / "bpe")
    Preparation([str(texts / "new.txt")], str(tmp_path / "bpe"), str(tmp_path / "corpus"), num_processes=1).run()
    with pytest.raises(UserError, match="was tokenized with another tokenizer"):
        run(bert, texts / "new.txt", tmp_path / "out", input=None, corpus=str(tmp_path / "corpus"))


def test_a_corpus_whose_validation_split_was_replaced_is_no_going_on(bert: Path, texts: Path, tmp_path: Path) -> None:
    from clozebert.corpus.preparation.pipeline import Preparation

    for name in ("corpus", "other"):
        held_out = tmp_path / f"{name}.txt"
        held_out.write_text((texts / "old.txt").read_text().replace("cat", "cat" if name == "corpus" else "dog"))
        Preparation(
            [str(texts / "new.txt")], str(bert), str(tmp_path / name), validation_input=[str(held_out)], num_processes=1
        ).run()
    flags: dict[str, Any] = {"input": None, "corpus": str(tmp_path / "corpus")}
    run(bert, texts / "new.txt", tmp_path / "out", **flags)
    shutil.rmtree(tmp_path / "corpus" / "validation")
    shutil.copytree(tmp_path / "other" / "validation", tmp_path / "corpus" / "validation")
    with pytest.raises(UserError, match="with another validation split of corpus: its content has"):
        run(bert, texts / "new.txt", tmp_path / "out", **flags)


def test_the_time_given_decides_the_steps(bert: Path, texts: Path, tmp_path: Path) -> None:
    results = run(bert, texts / "new.txt", tmp_path / "out", max_steps=None, max_minutes=0.1, global_batch_size=None)
    assert results["steps"] >= 1
    assert results["settings"]["global_batch_size"] in (8, 16, 32, 64)
    with pytest.raises(UserError, match="max_minutes=1e-06 was used up before training"):
        run(bert, texts / "new.txt", tmp_path / "late", max_steps=None, max_minutes=1e-6)


@pytest.mark.slow
def test_the_report_states_the_schedule_that_was_run(
    bert: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 steps, of which 12 decay, become 48 before step 28: the warm-up is over, and 20 steps decay."""
    monkeypatch.setattr(calibration, "steps_in", lambda *args, **others: 40)
    monkeypatch.setattr(
        loop, "Deadline", lambda ends, run, **others: Deadline(ends, run, **{**others, "most_steps": 48})
    )
    results = run(bert, texts / "new.txt", tmp_path / "out", max_steps=None, max_minutes=20, global_batch_size=8)
    shown = {name: results["settings"][name] for name in ("warmup_steps", "decay_steps")}
    assert (results["steps"], shown) == (48, {"warmup_steps": 2, "decay_steps": 20})
    assert "| decay_steps | 20 |" in (tmp_path / "out" / "report.md").read_text()


def test_an_adaptation_that_is_stopped_says_what_goes_on(
    bert: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`adapt` has no --resume_from_checkpoint."""
    seed_step = loop.seed_step

    def signalled(seed: int, step: int, *others: Any) -> None:
        if step == 2:
            signal.raise_signal(signal.SIGTERM)
        seed_step(seed, step, *others)

    monkeypatch.setattr(loop, "seed_step", signalled)
    for overwrite, way in ((False, "the same command"), (True, "the same command without --overwrite_output_dir")):
        stopped = run(bert, texts / "new.txt", tmp_path / "out", overwrite_output_dir=overwrite)
        assert stopped["stopped_by"] == signal.SIGTERM
        said = capsys.readouterr().out
        assert f"; {way} goes on from there" in said
        assert "--resume_from_checkpoint" not in said
    monkeypatch.setattr(loop, "seed_step", seed_step)
    assert run(bert, texts / "new.txt", tmp_path / "out")["steps"] == 4


def test_losses_per_word_are_over_the_same_words(tmp_path: Path) -> None:
    """Without spaces, each token is a word, so another vocabulary counts others."""
    draws = random.Random(0)
    texts = ["".join(draws.choices(["我们今天", "去北京", "看电影", "回家"], k=30)) for _ in range(60)]
    (tmp_path / "chinese.txt").write_text("\n\n".join(texts))
    model = save_native(tmp_path / "model", "modernbert")
    found = run(model, tmp_path / "chinese.txt", tmp_path / "out", extend_vocabulary=20)["evaluation"]
    work = tmp_path / "out" / "adaptation"
    before, after = (Corpus(work / name, "validation") for name in ("corpus-before", "corpus"))
    assert after.manifest["words"] < before.manifest["words"]
    words = before.manifest["words"]
    for stage, split in (("before", before), ("start", after), ("after", after)):
        assert found[stage]["new"]["tokens_per_word"] == pytest.approx(split.num_tokens / words)


def test_what_an_adaptation_made_worse_is_said() -> None:
    def results(new: float, general: float, **more: Any) -> dict[str, Any]:
        before, after = ({"new": {"eval_loss": a}, "general": {"eval_loss": b}} for a, b in ((2, 3), (new, general)))
        return {"evaluation": {"before": before, "after": after}, "student": None, **more}

    assert warnings_of(results(1.9, 3.3)) == []
    (worse,) = warnings_of(results(2.5, 3.0))
    assert "new text has risen by 0.50: the model is worse than before" in worse
    (forgotten,) = warnings_of(results(1.0, 3.4))
    assert "general text has risen by 0.40: the model forgets; give general text to --replay_input" in forgotten
    assert warnings_of(results(5.0, 5.0, student="1,000 parameters")) == []
    # With a new vocabulary, tokens do not compare.
    found = results(5.0, 5.0)
    found["evaluation"] |= {
        stage: {text: {"eval_loss": 9.0, "loss_per_word": loss} for text in ("new", "general")}
        for stage, loss in (("before", 6.0), ("start", 8.0), ("after", 5.0))
    }
    assert warnings_of(found) == []


def test_a_run_that_does_harm_says_so(bert: Path, texts: Path, tmp_path: Path) -> None:
    said: list[str] = []
    flags = adapt_flags(bert, texts / "new.txt", tmp_path / "out", max_steps=2, learning_rate=3.0)
    adapt(AdaptationArguments(**flags), say=said.append)
    assert "warning: the loss of the new text has risen by" in said[-1]
