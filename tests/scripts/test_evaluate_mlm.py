"""The evaluation program: one table and one JSON file, for our models and others, and mistakes in one line."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

sys.path.append(str(Path(__file__).parent.parent))
from pretraining_helpers import flags as as_flags
from pretraining_helpers import make_corpus, make_tokenizer, model_config, run_here
from transformers import BertConfig, BertForMaskedLM

from clozebert import ClozeBertForMaskedLM
from clozebert.scripts.evaluate_mlm import main
from clozebert.utils.errors import UserError


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, minimal pairs, our model and a BERT with the corpus' tokenizer."""
    folder = make_corpus(tmp_path_factory.mktemp("evaluate"))
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 30, "max_position_embeddings": 50}  # fmt: skip
    for name, model in (("ours", ClozeBertForMaskedLM(model_config())), ("bert", BertForMaskedLM(BertConfig(**sizes)))):
        model.save_pretrained(folder / name)
        make_tokenizer(56).save_pretrained(folder / name)
    make_tokenizer(56).save_pretrained(folder / "other")
    path = folder / "other" / "tokenizer.json"
    path.write_text(path.read_text().replace('"w7"', '"v7"'))
    (folder / "pairs.jsonl").write_text('{"sentence_good": "w1 w4", "sentence_bad": "w1 w9", "UID": "rule"}\n')
    long = {"sentence_good": "w1 " * 58, "sentence_bad": "w1 w9"}
    (folder / "long.jsonl").write_text(json.dumps(long) + "\n")
    (folder / "short.txt").write_text("w1\n")
    (folder / "text.txt").write_text("w1 w4 w7 w10\n\nw2 w5 w8\n")
    return folder


@pytest.mark.parametrize("name", ["ours", "bert"])
def test_a_table_and_a_file(workplace: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = workplace / "results" / f"{name}.json"
    main(
        [str(workplace / name), "--corpus", str(workplace / "corpus"), "--blimp", str(workplace / "pairs.jsonl"),
         "--pseudo_perplexity_documents", "3", "--mixed_precision", "no", "--output_file", str(output)]
    )  # fmt: skip
    results = json.loads(output.read_text())
    shown = capsys.readouterr().out
    assert 3 < results["eval_loss"] < 6, "random weights are near log 61"
    assert 30 < results["pseudo_perplexity"] < 150
    assert results["blimp_accuracy"] in (0.0, 1.0)
    assert results["blimp_paradigms"]["rule"]["pairs"] == 1
    assert results["documents"] == 12
    assert f"eval_loss{results['eval_loss']:.4f}" in "".join(shown.split())
    assert "rule" in shown


def test_minimal_pairs_are_scored_in_float32_unless_told_otherwise(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where `auto` means bf16 for everything else, too."""
    import clozebert.training.scoring as scoring
    import clozebert.utils.device as device

    monkeypatch.setattr(device, "has_fast_bf16", lambda _: True)
    monkeypatch.setattr(
        scoring, "score_minimal_pairs", lambda *_, **__: seen.append(torch.is_autocast_enabled("cpu")) or {}
    )
    monkeypatch.setattr(
        scoring, "score_frozen_masks", lambda *_, **__: seen.append(torch.is_autocast_enabled("cpu")) or {}
    )
    words = [str(workplace / "bert"), "--corpus", str(workplace / "corpus"), "--blimp", str(workplace / "pairs.jsonl")]
    for flags, wanted in (([], [True, False]), (["--mixed_precision", "bf16"], [True, True])):
        seen: list[bool] = []
        main([*words, "--pseudo_perplexity_documents", "0", "--use_cpu", *flags])
        assert seen == wanted
        shown = dict(line.split() for line in capsys.readouterr().out.splitlines() if "precision" in line)
        assert [shown["precision"] == "bf16", shown["blimp_precision"] == "bf16"] == wanted


def test_plain_text(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(workplace / "ours"), "--input", str(workplace / "text.txt"), "--eval_mlm_probability", "0.9"])
    shown = capsys.readouterr().out
    assert "pseudo_perplexity" in shown
    assert ["tokens", "7"] in [line.split() for line in shown.splitlines()]
    assert ["unknown_share", "0.0000"] in [line.split() for line in shown.splitlines()]
    (workplace / "unknown.txt").write_text("w1 zebra w4 w7 w10 w2 w5 w8\n")
    main([str(workplace / "ours"), "--input", str(workplace / "unknown.txt"), "--eval_mlm_probability", "0.9"])
    assert ["unknown_share", "0.1250"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    (workplace / "bad.txt").write_bytes(b"w1 w4 w7 w10 w2 w5 w8\n\ncaf\xe9\n")
    flags = ["--input", str(workplace / "bad.txt"), "--on_bad_text", "skip", "--eval_mlm_probability", "0.9"]
    main([str(workplace / "ours"), *flags])
    assert ["documents_left_out", "1"] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "nothing to score on"),
        (["--corpus", "a", "--input", "b"], "two texts"),
        (["--corpus", "corpus", "--per_device_eval_batch_size", "0"], "per_device_eval_batch_size=0 must be at least"),
        (["--corpus", "corpus", "--max_seq_length", "49"], "--max_seq_length=49 exceeds the 48 tokens"),
        (["--blimp", "nowhere"], "nowhere does not exist"),
        (["--input", "text.txt", "--blimp", "long.jsonl"], "--blimp: a sentence has 60 tokens, more than 48: 'w1 w1"),
        (["--input", "text.txt", "--output_file", "ours"], "--output_file='ours' is a folder"),
        (["--input", "text.txt", "--output_file", "text.txt/x.json"], "text.txt is not a folder to which you may"),
        (["--input", "*.txt", "--output_file", "text.txt"], "'text.txt' is one of the files that are read"),
        (["--blimp", "long.jsonl", "--output_file", "./long.jsonl"], "is one of the files that are read"),
        (["--input", "short.txt"], "so short that none of its tokens is predicted"),
        (["--corpus", "corpus", "--tokenizer_name", "bert/none"], "cannot be loaded"),
        (["--input", "text.txt", "./text.txt"], "text.txt twice"),
        (["--input", "text.txt", "--split", "train"], "--split train is a part of a corpus"),
        (["--corpus", "corpus", "--on_bad_text", "skip"], "say how to read --input: give one"),
        (["--input", "text.txt", "--text_column", "a"], "--text_column a: no input has columns"),
        (
            ["--input", "text.txt", "--tokenizer_name", "other"],
            "='other' has 'v7' as token 12, and the model's own 'w7'",
        ),
    ],
)
def test_mistakes_are_named(workplace: Path, flags: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    with pytest.raises((ValueError, OSError), match=message):
        main(["ours", *flags])


def test_a_tokenizer_of_another_model_of_the_hub_is_refused(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, commit = tmp_path / "models--org--ours", "0" * 40
    shutil.copytree(workplace / "ours", repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(workplace)
    with pytest.raises(UserError, match="='other' has 'v7' as token 12, and the model's own 'w7'"):
        main(["org/ours", "--input", "text.txt", "--tokenizer_name", "other"])


def test_another_split_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ours", "--corpus", "corpus", "--split", "test"])
    assert "--split: invalid choice: 'test'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["ours", "--corpus", "corpus", "--masking_unit", "wrod"])
    assert "--masking_unit: invalid choice: 'wrod'" in capsys.readouterr().err


def test_the_loss_of_a_run_is_found_again(tmp_path: Path) -> None:
    """By its row length, and every other value that decides the masks and the rows."""
    prepared, output = make_corpus(tmp_path), tmp_path / "scores.json"
    masks = {"masking_unit": "span", "mask_share": 1.0, "random_share": 0.0, "eval_mlm_probability": 0.3, "seed": 7}
    rows = {"max_seq_length": 40, "per_device_eval_batch_size": 4, "max_eval_batches": 2}
    run_here(prepared, tmp_path / "run", max_steps=3, **masks, **rows)
    shared = {**masks, **rows, "mixed_precision": "no", "pseudo_perplexity_documents": 0, "output_file": output}
    main([str(tmp_path / "run"), *as_flags({"corpus": prepared / "corpus", **shared})])
    figures = [json.loads(path.read_text())["eval_loss"] for path in (tmp_path / "run" / "all_results.json", output)]
    assert figures[1] == pytest.approx(figures[0], rel=1e-6)
