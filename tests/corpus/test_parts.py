"""Preparation in parts, by hand and under datatrove: byte for byte what one machine writes."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from clozebert.corpus import Corpus
from clozebert.corpus.preparation.parts import cut, part_folder
from clozebert.corpus.preparation.pipeline import Merge, Preparation
from clozebert.corpus.readers.inputs import Reader
from clozebert.utils.errors import UserError

from .test_prepare import files_of


@pytest.fixture(scope="module")
def inputs(
    english: list[str], tokenizers: dict[str, PreTrainedTokenizerFast], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Files of several kinds and sizes, with repeated, nearly repeated, empty and bad documents; a tokenizer."""
    folder = tmp_path_factory.mktemp("inputs")
    draws = random.Random(0)
    for number in range(7):
        texts = [*draws.sample(english, 25 + 10 * number), "", " \n"]
        long = [text for text in texts if len(text.split()) > 80]
        texts += [f"{text} One more sentence." for text in long]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "bad.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "\xff"}\n')
    (folder / "plain.txt").write_text("\n\n".join(english[:40]))
    held_out = folder.with_name("held_out.txt")
    held_out.write_text("\n\n".join(english[40:60]))
    tokenizers["bpe"].save_pretrained(folder.with_name("tokenizer"))
    return {"input": [str(folder)], "tokenizer_name": str(folder.with_name("tokenizer")), "on_bad_text": "skip",
            "held_out": [str(held_out)]}  # fmt: skip


def preparation(inputs: dict[str, Any], output_dir: Path, *, held_out: bool = False, **changes: Any) -> Preparation:
    values = {key: value for key, value in inputs.items() if key != "held_out"}
    if held_out:
        values["validation_input"] = inputs["held_out"]
    return Preparation(output_dir=str(output_dir), num_processes=1, **{**values, **changes})


@pytest.mark.parametrize("num_parts", [1, 3, 20])
@pytest.mark.parametrize(
    "changes",
    [
        {"deduplicate": "none", "validation_fraction": 0.2},
        {"deduplicate": "exact", "held_out": True},
        {"deduplicate": "near", "validation_fraction": 1e-9},
    ],
    ids=["none", "exact", "near"],
)
def test_parts_make_the_same_bytes(
    inputs: dict[str, Any], tmp_path: Path, changes: dict[str, Any], num_parts: int
) -> None:
    preparation(inputs, tmp_path / "whole", **changes).run()
    parted = preparation(inputs, tmp_path / "parted", **changes)
    order = list(range(num_parts))
    random.Random(1).shuffle(order)
    for part in order:
        parted.run_part(part, num_parts)
    parted.merge(num_parts)
    whole = files_of(tmp_path / "whole")
    assert files_of(tmp_path / "parted") == whole
    assert len(whole) >= 8
    sources = Corpus(tmp_path / "whole").manifest["sources"]
    assert sum(source["bad_text"] for source in sources) == 1
    assert sum(source["empty"] for source in sources) == 14
    if changes["deduplicate"] != "none":
        assert sum(source["duplicate"] for source in sources) > 50
    if changes["deduplicate"] == "near":
        assert sum(source["near_duplicate"] for source in sources) > 5
        assert Corpus(tmp_path / "whole", "validation").num_documents == 1


def test_a_part_that_is_there_is_left_and_one_of_another_job_refused(inputs: dict[str, Any], tmp_path: Path) -> None:
    parted = preparation(inputs, tmp_path / "out")
    folder = parted.run_part(1, 3)
    before = (folder / "part.json").stat().st_ino
    assert parted.run_part(1, 3) == folder == part_folder(tmp_path / "out", 1, 3)
    assert (folder / "part.json").stat().st_ino == before
    with pytest.raises(ValueError, match="was made from other inputs, by another tokenizer, other flags"):
        preparation(inputs, tmp_path / "out", on_bad_text="error").run_part(1, 3)
    with pytest.raises(FileNotFoundError, match=r"lacks 2 of 3 parts: 00000-of-00003, 00002-of-00003; prepare them"):
        parted.merge(3)
    with pytest.raises(ValueError, match="part=3 must lie between 0 and num_parts - 1 = 2"):
        parted.run_part(3, 3)
    with pytest.raises(ValueError, match="splits by files: installed-python"):
        preparation(inputs, tmp_path / "out", input=["installed-python"]).run_part(0, 2)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    parted.check(1, 3)  # a part is written beside the folder
    with pytest.raises(UserError, match="is not empty"):
        parted.check(None, 3)


def test_a_file_that_changed_after_its_part_was_made_is_refused(inputs: dict[str, Any], tmp_path: Path) -> None:
    """Of the same size: nothing but its content tells."""
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name} cat sat on the mat\n\nthe dog ran far away")
    changes = {"input": [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], "validation_fraction": 0.0}
    parted = preparation(inputs, tmp_path / "out", **changes)
    for part in (0, 1):
        parted.run_part(part, 2)
    (tmp_path / "b.txt").write_text("b cow sat on the mat\n\nthe dog ran far away")
    for call in (lambda: parted.run_part(1, 2), lambda: parted.merge(2)):
        with pytest.raises(ValueError, match=r"b\.txt was changed after .*00001-of-00002 .*--part 1 --overwrite"):
            call()
    parted.run_part(0, 2)
    preparation(inputs, tmp_path / "out", **changes, overwrite_output_dir=True).run_part(1, 2)
    parted.merge(2)
    preparation(inputs, tmp_path / "whole", **changes).run()
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("name", ["documents.bin", "tokens.bin", "part.json"])
def test_a_damaged_part_is_refused(inputs: dict[str, Any], tmp_path: Path, name: str) -> None:
    """As after an interrupted copy from another machine: no document may be lost."""
    parted = preparation(inputs, tmp_path / "out", input=[inputs["held_out"][0]])
    content = parted.run_part(0, 1) / name
    content.write_bytes(content.read_bytes()[:-300])
    state = "damaged" if name == "part.json" else "damaged or missing"
    for call in (lambda: parted.run_part(0, 1), lambda: parted.merge(1)):
        with pytest.raises(UserError, match=rf"{name} is {state}: prepare that part again \(--part 0 --over"):
            call()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", [{"files": None}, {"sources": []}, {"sources": [[{"read": 3}]]}, {"part": "x"}])
def test_a_part_whose_own_file_was_changed_is_refused(inputs: dict[str, Any], tmp_path: Path, change: Any) -> None:
    parted = preparation(inputs, tmp_path / "out", input=[inputs["held_out"][0]])
    file = parted.run_part(0, 1) / "part.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UserError, match=r"part\.json is damaged: prepare that part again \(--part 0 --over"):
        parted.merge(1)


def test_a_part_in_the_place_of_another_is_refused(inputs: dict[str, Any], tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name} cat sat on the mat\n\nthe dog ran far away")
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    parted = preparation(inputs, tmp_path / "out", input=files, validation_fraction=0.0)
    first, second = (parted.run_part(part, 2) for part in (0, 1))
    shutil.rmtree(second)
    shutil.copytree(first, second)
    with pytest.raises(UserError, match=r"00001-of-00002 holds another part, 00000-of-00002: prepare .*--part 1"):
        parted.merge(2)


def test_parts_of_the_current_folder(inputs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    parted = preparation(inputs, Path("."), input=[inputs["held_out"][0]])
    assert parted.run_part(0, 1) == part_folder(tmp_path / "out", 0, 1)
    parted.merge(1)
    assert Corpus(tmp_path / "out").num_documents > 0


@pytest.mark.parametrize("num_parts", [0, -1])
def test_there_is_at_least_one_part(inputs: dict[str, Any], tmp_path: Path, num_parts: int) -> None:
    parted = preparation(inputs, tmp_path / "out")
    for call in (lambda: parted.run_part(0, num_parts), lambda: parted.merge(num_parts)):
        with pytest.raises(UserError, match=f"num_parts={num_parts} must be at least 1"):
            call()


def test_a_part_that_fails_leaves_nothing(inputs: dict[str, Any], tmp_path: Path) -> None:
    strict = preparation(inputs, tmp_path / "out", on_bad_text="error")
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 2"):
        strict.run_part(0, 1)
    assert list((tmp_path / "out.parts").iterdir()) == []


def test_files_are_cut_into_runs_of_about_one_size(inputs: dict[str, Any]) -> None:
    readers = [Reader(inputs["held_out"]), Reader(inputs["input"], on_bad_text="skip")]
    parts = [cut(readers, part=part, num_parts=3) for part in range(3)]
    for number, reader in enumerate(readers):
        assert [path for part in parts for path in part[number].files] == reader.files
    sizes = [sum(reader.total_bytes for reader in part) for part in parts]
    assert max(sizes) < 2 * min(sizes)


def test_under_datatrove(inputs: dict[str, Any], tmp_path: Path) -> None:
    """Real tasks in processes of their own, as on a cluster: with datatrove."""
    executors = pytest.importorskip("datatrove.executor")
    options = {"validation_fraction": 0.2, "deduplicate": "exact"}
    preparation(inputs, tmp_path / "whole", **options).run()
    stage = preparation(inputs, tmp_path / "parted", **options)
    parts = executors.LocalPipelineExecutor([stage], tasks=4, workers=2, logging_dir=str(tmp_path / "logs" / "parts"))
    executors.LocalPipelineExecutor(
        [Merge(stage, 4)], tasks=1, depends=parts, logging_dir=str(tmp_path / "logs" / "merge")
    ).run()
    assert files_of(tmp_path / "parted") == files_of(tmp_path / "whole")
    assert len(list((tmp_path / "parted.parts").iterdir())) == 4
