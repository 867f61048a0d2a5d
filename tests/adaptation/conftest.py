"""Makes the helpers importable, whichever way pytest is started."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent, HERE.parent / "hub"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with old.txt and new.txt, a document on each paragraph."""
    from small_models import write_texts

    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small_models import save_native

    return save_native(tmp_path_factory.mktemp("models") / "bert", "bert")
