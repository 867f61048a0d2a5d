"""Makes `natives` importable, whichever way pytest is started; the Hub on loopback that tests publish to."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))


@pytest.fixture
def hub(monkeypatch):
    import huggingface_hub
    from hub_server import Hub, point_client_at

    with Hub() as server:
        point_client_at(server, monkeypatch)
        yield server
        huggingface_hub.close_session()


@pytest.fixture
def unverified(monkeypatch):
    """The clean process costs seconds; it has tests of its own."""
    from clozebert.hub import publishing
    from clozebert.hub.verification import Verification

    monkeypatch.setattr(publishing, "verify_folder", lambda folder: Verification(["AutoModel"], {}, []))
