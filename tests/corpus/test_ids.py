"""Token ids without a tokenizer: they are kept as they are, and what is none is refused with its line."""

import errno
import json
import pickle
from pathlib import Path

import pytest

from clozebert.corpus import Corpus
from clozebert.corpus.preparation import prepare
from clozebert.corpus.preparation.pipeline import Preparation
from clozebert.corpus.readers.formats import id_reader
from clozebert.corpus.readers.table_file import BadText
from clozebert.corpus.tokenizer import load_tokenizer
from clozebert.utils.errors import UserError

DOCUMENTS = [[(7 * place + number) % 40 for place in range(3 + number)] for number in range(30)]


def write(folder: Path, documents: list, name: str = "ids.jsonl") -> str:
    path = folder / name
    path.write_text("".join(json.dumps({"ids": document, "species": "x"}) + "\n" for document in documents))
    return str(path)


def preparation(folder: Path, source: str, **changes: object) -> Preparation:
    settings = {"tokenizer_name": None, "id_column": "ids", "vocab_size": 40, "validation_fraction": 0.0, **changes}
    return Preparation([source], output_dir=str(folder / "corpus"), num_processes=1, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("as_text", [False, True])
def test_ids_stay_what_they_are(as_text: bool, tmp_path: Path) -> None:
    documents = [" ".join(map(str, document)) for document in DOCUMENTS] if as_text else DOCUMENTS
    preparation(tmp_path, write(tmp_path, documents)).run()
    corpus = Corpus(tmp_path / "corpus")
    assert [corpus.document(number).tolist() for number in range(len(corpus))] == DOCUMENTS
    assert corpus.special_token_ids == [40, 41, 42, 43, 44]
    tokenizer = load_tokenizer(str(tmp_path / "corpus" / "tokenizer"))
    assert tokenizer("5 17 39")["input_ids"] == [42, 5, 17, 39, 43]
    assert tokenizer.decode([5, 17, 39]) == "5 17 39"
    assert corpus.vocab_size == len(tokenizer) == 45


def test_a_disk_that_is_full_at_the_tokenizer_leaves_no_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(tokenizer: object, folder: Path) -> None:
        folder.mkdir()
        (folder / "tokenizer.json").write_text("{")
        raise OSError(errno.ENOSPC, "as the system says")

    monkeypatch.setattr(prepare, "save_tokenizer", fill)
    with pytest.raises(UserError, match=r"corpus cannot be written \(No space left"):
        preparation(tmp_path, write(tmp_path, DOCUMENTS)).run()
    assert not (tmp_path / "corpus").exists()


_OUTSIDE, _OTHER = r"is not between 0 and 39 \(--vocab_size\)", "is not a whole number"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [(40, _OUTSIDE), (-1, _OUTSIDE), (2.5, _OTHER), (3.0, _OTHER), (True, _OTHER), ("x", _OTHER), (None, _OTHER)],
)
def test_what_is_no_id_is_refused_with_its_line_and_nothing_is_written(wrong: object, why: str, tmp_path: Path) -> None:
    source = write(tmp_path, [*DOCUMENTS[:4], [3, wrong], *DOCUMENTS[4:]])
    with pytest.raises(UserError, match=rf"ids.jsonl, line 5: .*the id at place 2, {why}"):
        preparation(tmp_path, source).run()
    assert not (tmp_path / "corpus").exists()


@pytest.mark.parametrize(("cell", "what"), [(b"\x01\x02", "bytes"), ({"5": 1, "7": 2}, "an object")])
def test_bytes_and_objects_are_no_ids(cell: object, what: str) -> None:
    found = pickle.loads(pickle.dumps(id_reader(10)))(cell, 3, "row")  # as engines send it to another process
    assert isinstance(found, BadText)
    assert (found.line, found.reason) == (3, f"the cell holds {what}, and no list of numbers")


def test_flags_that_do_not_go_together(tmp_path: Path) -> None:
    source = write(tmp_path, DOCUMENTS)
    (tmp_path / "text.txt").write_text("1 2 3")
    for changes, message in (
        ({"vocab_size": None}, "needs --vocab_size"),
        ({"vocab_size": 0}, "vocab_size=0 must be at least 1"),
        ({"id_column": None}, "vocab_size=40 is for --id_column"),
        ({"id_column": None, "vocab_size": None}, "give --tokenizer_name DIR, or --id_column"),
        ({"tokenizer_name": "x"}, "needs no tokenizer_name"),
        ({"id_column": "tokens"}, "--id_column tokens: "),
    ):
        with pytest.raises(UserError, match=message):
            preparation(tmp_path, source, **changes).run()
    with pytest.raises(UserError, match="ids are read from a column of a table"):
        preparation(tmp_path, str(tmp_path / "text.txt")).run()
