"""Makes the helpers importable, whichever way pytest is started."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
for folder in (TESTS / "faults", TESTS):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and a corpus prepared with it."""
    from pretraining_helpers import make_corpus

    return make_corpus(tmp_path_factory.mktemp("prepared"))
