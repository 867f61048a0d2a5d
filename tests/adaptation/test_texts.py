"""What `adapt` takes for text, what it refuses, and how it says where a test overlaps with it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_models import run, save_native
from transformers import AutoTokenizer

from clozebert.adaptation import adapt as adapt_module
from clozebert.adaptation.start import check_known_tokens
from clozebert.corpus.readers.inputs import Reader
from clozebert.utils.errors import UserError
from clozebert.utils.processes import LostProcessError


def test_text_of_one_document_is_refused_and_can_be_read_by_lines(bert: Path, tmp_path: Path) -> None:
    text = tmp_path / "one.txt"
    text.write_text("the old cat walked slowly under the window\n" * 20)
    for _ in range(2):
        with pytest.raises(UserError, match=r"is a single document \(copies not counted\); none can be held out"):
            run(bert, text, tmp_path / "out")


def test_too_little_held_out_text_is_mended_by_giving_more(bert: Path, texts: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.txt"
    few.write_text("the old cat walked\n\nunder it\n")
    with pytest.raises(UserError, match=r"new text to score is too short, none .* was masked: hold out more, with"):
        run(bert, few, tmp_path / "out")
    assert run(bert, few, tmp_path / "out", validation_input=[str(texts / "old.txt")])["steps"] == 4


def test_what_is_prepared_stays_if_a_process_is_lost_later(
    bert: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing about the flags is wrong, so the same command need not read the text again."""
    before, calls = adapt_module.prepare, []

    def prepare(reader: Reader, **options: Any) -> Any:
        calls.append(reader.files)
        if len(calls) == 2:
            raise LostProcessError("a process ended before its work was done")
        return before(reader, **options)

    monkeypatch.setattr(adapt_module, "prepare", prepare)
    general = [str(texts / "old.txt")]
    with pytest.raises(LostProcessError):
        run(bert, texts / "new.txt", tmp_path / "out", general_input=general)
    assert run(bert, texts / "new.txt", tmp_path / "out", general_input=general)["steps"] == 4
    assert calls == [[texts / "new.txt"], [texts / "old.txt"], [texts / "old.txt"]]


def test_a_card_that_cannot_be_read_is_no_obstacle(bert: Path, texts: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(bert, tmp_path / "bert"))
    (model / "README.md").write_text("---\nlicense: [\n---\n")
    with pytest.warns(UserWarning, match=r"README\.md cannot be read: .*; the new card has none of it"):
        run(model, texts / "new.txt", tmp_path / "out")


def test_text_that_is_scored_is_never_trained_on(bert: Path, texts: Path, tmp_path: Path) -> None:
    old, new = [str(texts / "old.txt")], [str(texts / "new.txt")]
    for trained, scored, changes in (
        ("input", "general_input", {"general_input": new}),
        ("replay_input", "general_input", {"replay_input": old, "general_input": old}),
        ("replay_input", "validation_input", {"replay_input": old, "validation_input": old}),
    ):
        with pytest.raises(UserError, match=rf"\.txt is in {trained} and in {scored}: leave it out of one"):
            run(bert, texts / "new.txt", tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_positions_that_begin_after_another_padding_id_are_refused(tmp_path: Path, texts: Path) -> None:
    model = save_native(tmp_path / "roberta", "roberta")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "pad_token_id": config["pad_token_id"] + 1}))
    with pytest.raises(UserError, match=r"its positions begin after that id, so set pad_token_id in config\.json"):
        run(model, texts / "new.txt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_inputs_that_are_no_files_are_told_apart() -> None:
    """A dataset of the Hub has no content here to be compared, but a name."""
    reader = Reader(["installed-python"])
    assert (reader.files, reader.other_inputs) == ([], ["installed-python"])


def test_a_text_column_without_tables_is_refused(bert: Path, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--text_column body: no input has columns"):
        run(bert, texts / "new.txt", tmp_path / "out", text_column="body")


def test_unknown_tokens_are_counted_without_padding(bert: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.backend_tokenizer.enable_padding(length=128)
    (tmp_path / "greek.txt").write_text("μῆνιν ἄειδε θεά\n\nΠηληϊάδεω Ἀχιλῆος\n")
    with pytest.raises(UserError, match="100% of its first tokens are unknown"):
        check_known_tokens(Reader([tmp_path / "greek.txt"]), tokenizer, flag="input")


def test_text_that_few_unknown_tokens_stand_for_is_refused(bert: Path, tmp_path: Path) -> None:
    """WordPiece makes a word of more than 100 letters one token."""
    path, tokenizer = tmp_path / "thai.txt", AutoTokenizer.from_pretrained(bert)
    few = "the old cat walked slowly under the window\n" * 20
    path.write_text(few + "ก" * 120)
    with pytest.raises(UserError, match=r"1% of its first tokens are unknown .*, and stand for 30% of the bytes"):
        check_known_tokens(Reader([path]), tokenizer, flag="input")
    path.write_text(few * 4 + "ก" * 120)
    check_known_tokens(Reader([path]), tokenizer, flag="input")


def test_a_file_of_tagged_words_is_no_text(bert: Path, texts: Path, tmp_path: Path) -> None:
    """Each of its lines would be a document: no run of words, and no overlap to be found."""
    tagged = tmp_path / "test.conllu"
    tagged.write_text("1\tthe\tthe\tDET\n\n")
    with pytest.raises(UserError, match=r"test\.conllu holds a word and its tags on each line"):
        run(bert, texts / "new.txt", tmp_path / "out", protect=[str(tagged)])
    assert not (tmp_path / "out").exists()


def test_protected_files_of_one_name_are_all_in_the_report(bert: Path, texts: Path, tmp_path: Path) -> None:
    new = texts / "new.txt"
    contents = {"copied": new.read_text().replace("\n\n", "\n"), "strange": " ".join("abcdefghijklmnopqrst")}
    for folder, content in contents.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "test.txt").write_text(content)
    protect = [str(tmp_path / folder / "test.txt") for folder in contents]
    found = run(bert, new, tmp_path / "out", protect=protect)["overlap"]
    assert not found["test.txt"].startswith("0 of")
    assert found["test.txt (2)"].startswith("0 of 1 documents (0.0%), 0 of 8 runs")
    assert "| test.txt (2) |" in (tmp_path / "out" / "report.md").read_text()
