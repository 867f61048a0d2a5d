"""Preparation: every document accounted for, on one side only, the same bytes from any number of processes."""

import contextlib
import errno
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from clozebert.corpus import Corpus, RowIndex
from clozebert.corpus.preparation import prepare as preparation
from clozebert.corpus.preparation.parallel import ordered_map
from clozebert.corpus.preparation.prepare import prepare
from clozebert.corpus.readers.inputs import Reader
from clozebert.utils.errors import UserError


@pytest.fixture
def tokenizer(tokenizers: dict[str, PreTrainedTokenizerFast]) -> PreTrainedTokenizerFast:
    return tokenizers["bpe"]


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def texts_of(folder: Path, tokenizer: PreTrainedTokenizerFast, split: str) -> list[str]:
    corpus = Corpus(folder, split)
    return [tokenizer.decode(corpus.document(number)) for number in range(corpus.num_documents)]


def test_every_text_is_on_one_side_word_for_word(
    english: list[str], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [*english, "", "  "])
    manifests = prepare(Reader([path]), tokenizer=tokenizer, output_dir=tmp_path / "out", validation_fraction=0.2)
    train, validation = (texts_of(tmp_path / "out", tokenizer, split) for split in ("train", "validation"))
    assert [text for text in english if text in set(train)] == train  # in order
    assert sorted(train + validation) == sorted(english)
    assert not set(train) & set(validation)
    assert 0.1 < len(validation) / len(english) < 0.3
    manifest = manifests["train"]
    assert manifest == Corpus(tmp_path / "out").manifest
    source = manifest["sources"][0]
    assert source["documents"] == len(english) + 2
    assert (source["train"], source["validation"], source["empty"]) == (len(train), len(validation), 2)
    assert manifest["text_bytes"] == sum(len(text.encode()) for text in train)
    assert (manifest["documents"], manifest["unknown_tokens"]) == (len(train), 0)
    assert source["bytes"] == path.stat().st_size


def test_the_bytes_do_not_depend_on_the_processes(
    english: list[str], tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "_CHUNK_BYTES", 5000)
    path = write_lines(tmp_path / "a.jsonl", english * 2)
    for processes in (1, 2):
        prepare(
            Reader([path]), tokenizer=tokenizer, output_dir=tmp_path / str(processes), num_processes=processes,
            deduplicate="near", shard_tokens=3000,
        )  # fmt: skip
    one, two = files_of(tmp_path / "1"), files_of(tmp_path / "2")
    assert len(one) > 10
    assert one == two
    assert not multiprocessing.active_children()


def test_two_threads_prepare_each_with_its_own_tokenizer(
    english: list[str], tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "_CHUNK_BYTES", 1000)
    path = write_lines(tmp_path / "a.jsonl", english * 2)

    def prepare_by(kind: str, folder: Path) -> dict[str, bytes]:
        prepare(Reader([path]), tokenizer=tokenizers[kind], output_dir=folder, num_processes=1)
        return files_of(folder)

    kinds = ["bpe", "wordpiece"]
    alone = [prepare_by(kind, tmp_path / kind) for kind in kinds]
    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(prepare_by, kinds, [tmp_path / f"{kind}-too" for kind in kinds]))
    assert together == alone


@pytest.mark.parametrize("deduplicate", ["none", "exact", "near"])
def test_duplicates(deduplicate: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    base = [" ".join(f"w{(7 * number + place) % 1013}" for place in range(300)) for number in range(0, 400, 40)]
    near = [text + " and a few more words" for text in base[:3]]
    path = write_lines(tmp_path / "a.jsonl", base + base[:5] + near)
    manifests = prepare(
        Reader([path]), tokenizer=tokenizer, output_dir=tmp_path / "out", deduplicate=deduplicate, validation_fraction=0
    )
    source = manifests["train"]["sources"][0]
    expected = {"none": (18, None, None), "exact": (13, 5, None), "near": (10, 5, 3)}[deduplicate]
    assert (source["train"], source.get("duplicate"), source.get("near_duplicate")) == expected
    assert manifests["validation"]["documents"] == 0
    assert Corpus(tmp_path / "out", "validation").num_documents == 0


def test_validation_inputs_are_not_trained_on(
    english: list[str], tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    held_out = write_lines(tmp_path / "held_out.jsonl", english[:20])
    path = write_lines(tmp_path / "a.jsonl", english)
    manifests = prepare(
        Reader([path]), tokenizer=tokenizer, output_dir=tmp_path / "out", validation_reader=Reader([held_out]),
        deduplicate="exact",
    )  # fmt: skip
    assert texts_of(tmp_path / "out", tokenizer, "validation") == english[:20]
    assert texts_of(tmp_path / "out", tokenizer, "train") == english[20:]
    assert [source["path"] for source in manifests["train"]["sources"]] == ["held_out.jsonl", "a.jsonl"]


def test_no_room_for_temporary_files(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def fill(path: Path, *args: Any, **options: Any) -> int:
        if path.name == "tokenizer.json":
            raise OSError(errno.ENOSPC, "as the system says")
        return write(path, *args, **options)

    monkeypatch.setattr(Path, "write_text", fill)
    reader = Reader([write_lines(tmp_path / "a.jsonl", ["one", "two"])])
    with pytest.raises(
        UserError, match=rf"{re.escape(tempfile.gettempdir())} cannot be written .*: free some space there, or set"
    ):
        prepare(reader, tokenizer=tokenizer, output_dir=tmp_path / "out", num_processes=1)


def test_a_small_corpus_holds_out_one_document(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", ["one text", "another text", "a third one"])
    manifests = prepare(Reader([path]), tokenizer=tokenizer, output_dir=tmp_path / "out", validation_fraction=1e-9)
    assert (manifests["train"]["documents"], manifests["validation"]["documents"]) == (2, 1)
    path = write_lines(tmp_path / "b.jsonl", ["the only text"])
    manifests = prepare(Reader([path]), tokenizer=tokenizer, output_dir=tmp_path / "single")
    assert sorted((manifests["train"]["documents"], manifests["validation"]["documents"])) == [0, 1]
    assert manifests["train"]["documents"] == 1


@pytest.mark.parametrize("algorithm", ["wordpiece", "unigram"])
def test_ids_are_the_tokenizers(
    algorithm: str, english: list[str], tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "a.jsonl", english[:50])
    prepare(Reader([path]), tokenizer=tokenizers[algorithm], output_dir=tmp_path / "out", validation_fraction=0)
    corpus = Corpus(tmp_path / "out")
    expected = tokenizers[algorithm](english[:50], add_special_tokens=False, verbose=False).input_ids
    assert [corpus.document(number).tolist() for number in range(50)] == expected
    unknown = sum(ids.count(1) for ids in expected)
    assert corpus.manifest["unknown_tokens"] == unknown


def test_failure_leaves_nothing_and_keeps_what_was(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    good = write_lines(tmp_path / "good.jsonl", ["some text", "some other text"])
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"text": "fine"}\n{"text": "\xff"}\n')
    out = tmp_path / "work" / "out"
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2"):
        prepare(Reader([bad]), tokenizer=tokenizer, output_dir=out)
    assert list(out.parent.iterdir()) == []
    prepare(Reader([good]), tokenizer=tokenizer, output_dir=out)
    before = files_of(out)
    with pytest.raises(FileExistsError, match="is not empty; give --overwrite_output_dir"):
        prepare(Reader([good]), tokenizer=tokenizer, output_dir=out)
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2"):
        prepare(Reader([bad]), tokenizer=tokenizer, output_dir=out, overwrite=True)
    assert files_of(out) == before
    (out / "notes.txt").write_text("mine")
    prepare(Reader([bad], on_bad_text="skip"), tokenizer=tokenizer, output_dir=out, overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"
    assert texts_of(out, tokenizer, "train") == ["fine"]
    assert Corpus(out).manifest["sources"][0]["bad_text"] == 1
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"deduplicate": "exactly"}, "deduplicate='exactly' must be one of none, exact, near"),
        ({"validation_fraction": 1.0}, "validation_fraction=1.0"),
        ({"num_processes": 0}, "num_processes=0"),
    ],
)
def test_what_is_wrong_is_said(
    wrong: dict[str, Any], message: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    reader = Reader([write_lines(tmp_path / "a.jsonl", ["text"])])
    with pytest.raises(ValueError, match=message):
        prepare(reader, tokenizer=tokenizer, output_dir=tmp_path / "out", **wrong)
    blank = Reader([write_lines(tmp_path / "b.jsonl", ["", "\n"])])
    with pytest.raises(ValueError, match="the corpus is empty: 2 documents were read"):
        prepare(blank, tokenizer=tokenizer, output_dir=tmp_path / "out")
    (tmp_path / "c.txt").write_bytes("caf\xe9\n\nth\xe9\n".encode("latin-1"))
    latin = Reader([tmp_path / "c.txt"], on_bad_text="skip")
    with pytest.raises(ValueError, match="empty: 2 documents were read, 2 of them left out by --on_bad_text skip, and"):
        prepare(latin, tokenizer=tokenizer, output_dir=tmp_path / "out")


@pytest.mark.parametrize(("texts", "held_out"), [(["a"], 0), (["a", "b", "c"], 1)])
def test_something_is_left_to_train_on(
    texts: list[str], held_out: int, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """Where the hashes of all documents fall into validation."""
    reader = Reader([write_lines(tmp_path / "a.jsonl", texts)])
    prepare(reader, tokenizer=tokenizer, output_dir=tmp_path / "out", validation_fraction=1 - 1e-9)
    counts = [Corpus(tmp_path / "out", split).num_documents for split in ("train", "validation")]
    assert counts == [len(texts) - held_out, held_out]


def test_rows_of_real_text_are_full(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """At least 98 % of each row's places hold tokens. A batch itself holds nothing else."""
    book = Path(__file__).parents[3] / "shared" / "data" / "mlm_openstax" / "text" / "introduction-sociology.txt"
    if not book.is_file():
        pytest.skip("needs the shared data beside the repository")
    prepare(Reader([book]), tokenizer=tokenizer, output_dir=tmp_path / "out", validation_fraction=0)
    corpus = Corpus(tmp_path / "out")
    for max_seq_length in (128, 512, 1024):
        index = RowIndex(corpus, max_seq_length=max_seq_length)
        lengths = index.read(np.arange(index.num_rows))[2]
        assert (lengths.sum() + 2 * len(lengths)) / (index.num_rows * max_seq_length) >= 0.98


ON_ITS_OWN = """
import sys
from clozebert.corpus.preparation.prepare import prepare
from clozebert.corpus.readers.inputs import Reader
from clozebert.corpus.tokenizer import load_tokenizer
{guard}
prepare(Reader([sys.argv[1]]), tokenizer=load_tokenizer(sys.argv[2]), output_dir=sys.argv[3], num_processes=2)
"""


def script_of_its_own(tmp_path: Path, *, guard: str) -> tuple[list[str], dict[str, str]]:
    """A script that prepares a corpus by a tokenizer of more text than a pipe holds, and some of the text itself."""
    entries = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "[PAD]": 3, "[MASK]": 4}
    entries |= {f"a-rather-long-word-{number}": number for number in range(len(entries), 20_000)}
    backend = Tokenizer(models.WordLevel(entries, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "mask_token": "[MASK]",
    }
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "text.txt").write_text("some text of a few words\n\n" * 400_000)
    (tmp_path / "script.py").write_text(ON_ITS_OWN.format(guard=guard))
    command = [sys.executable, "script.py", "text.txt", "tokenizer", "corpus"]
    return command, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_a_script_without_its_guard_is_told_so_and_does_not_hang(tmp_path: Path) -> None:
    command, environment = script_of_its_own(tmp_path, guard="")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert 'the call needs `if __name__ == "__main__":` around it' in done.stderr


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    command, environment = script_of_its_own(tmp_path, guard='if __name__ == "__main__":\n  ')
    script = tmp_path / "script.py"
    script.write_text(script.read_text().replace("  \nprepare", "  prepare"))
    program = subprocess.Popen(command, cwd=tmp_path, env=environment)

    def workers() -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cwd").resolve() == tmp_path and b"spawn_main" in (process / "cmdline").read_bytes():
                    found.append(process.name)
        return found

    deadline = time.monotonic() + 120
    while len(workers()) < 2:
        assert program.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    program.kill()
    program.wait()
    while workers():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_process_that_was_killed_is_said() -> None:
    """By the system for its memory, say; or a script without its `if __name__ == "__main__":`."""
    with pytest.raises(UserError, match="a process ended before its work was done"):
        list(ordered_map(os._exit, [3, 3], num_processes=2, initializer=int))


@pytest.mark.parametrize("copies", [1, 2, 5])
def test_copies_of_one_text_are_all_trained_on(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, copies: int) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(["the quick brown fox"] * copies))
    manifests = prepare(Reader([tmp_path / "a.txt"]), tokenizer=tokenizer, output_dir=tmp_path / "corpus")
    assert [manifests[split]["documents"] for split in ("train", "validation")] == [copies, 0]
