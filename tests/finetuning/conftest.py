"""Models and data of the runs in these tests. Makes the helpers importable, whichever way pytest is started."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

from finetuning_helpers import make_checkpoint, write_entities, write_json_lines, write_sentiment  # noqa: E402


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    kinds = {"bert": "wordpiece", "roberta": "bpe", "clozebert": "wordpiece"}
    return {name: make_checkpoint(folder / name, model_type=name, tokenizer_kind=kind) for name, kind in kinds.items()}


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """(training file, validation file) for each kind of task."""
    folder = tmp_path_factory.mktemp("data")
    films = [
        "great film",
        "boring acting and a sad end",
        "a happy end",
        "a terrible film and so on",
        "the dog runs",
    ] * 8
    multi = [{"text": t, "label": [w for w in ("film", "end", "dog") if w in t]} for t in films]
    numbers = [{"sentence1": t, "sentence2": "film", "score": 100.5 + 30 * len(t.split())} for t in films]
    return {
        "single": (write_sentiment(folder / "a.csv", rows=60), write_sentiment(folder / "b.csv", rows=20, seed=1)),
        "multi": (write_json_lines(folder / "m.jsonl", multi), write_json_lines(folder / "n.jsonl", multi[:10])),
        "regression": (
            write_json_lines(folder / "r.jsonl", numbers),
            write_json_lines(folder / "s.jsonl", numbers[:9]),
        ),
        "token": (write_entities(folder / "t.conll", rows=40), write_entities(folder / "u.conll", rows=10, seed=1)),
    }
