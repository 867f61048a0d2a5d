"""What the programs share: where the models lie, what they must answer, and how a result is told.

A program names its ways, from the plainest on: `run({"as is": job, "after import clozebert": after_import(job)})`.
Each is tried in a process of its own until one passes. A failure that is known is named with a part of its message and
whose it is; any other failure, and a known one that is gone, is told as such.
"""

import importlib.metadata
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

FORM = os.environ.get("DOORS_FORM", "native")
MODELS = os.environ.get("DOORS_MODELS", "")
# What a bundle needs where a program hands options on.
TRUST: dict[str, Any] = {"trust_remote_code": True} if FORM == "bundle" else {}
OLD = "needs transformers 5.4 or newer"
_largest: list[float] = []


def folder(head: str, architecture: str = "modernbert") -> str:
    """The published model: `mlm`, `sentiment` or `entities`."""
    return os.path.join(MODELS, architecture, head, FORM)


def answers(architecture: str = "modernbert") -> dict[str, Any]:
    """What make_models.py wrote down."""
    with open(os.path.join(MODELS, architecture, "answers.json"), encoding="utf-8") as file:
        return json.load(file)


def near(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    """Every number is as wanted, relative to the largest wanted one; the difference is told."""
    import numpy as np

    found_array = np.asarray(found, dtype=np.float64)
    wanted_array = np.asarray(wanted, dtype=np.float64)
    assert found_array.shape == wanted_array.shape, f"shape {found_array.shape}, not {wanted_array.shape}"
    difference = float(np.abs(found_array - wanted_array).max() / np.abs(wanted_array).max())
    _largest.append(difference)
    assert difference <= tolerance, f"off by {difference:.3g} of the largest value"


def auto(name: str, head: str, architecture: str = "modernbert", **options: Any) -> Any:
    """A model by one of transformers' Auto classes, in evaluation mode."""
    import transformers

    return getattr(transformers, name).from_pretrained(folder(head, architecture), **TRUST, **options).eval()


def tokenizer(head: str = "mlm", architecture: str = "modernbert") -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder(head, architecture), **TRUST)


def auto_classes_and_pipeline() -> None:
    """The job of each release of transformers: three Auto classes and a pipeline answer as wanted."""
    import torch
    from transformers import pipeline

    wanted = answers()
    batch = tokenizer()(wanted["texts"], padding=True, return_tensors="pt")
    with torch.no_grad():
        scores = auto("AutoModelForSequenceClassification", "sentiment")(**batch).logits
        near(scores.softmax(-1), wanted["probabilities"])
        hidden = auto("AutoModel", "mlm")(**batch).last_hidden_state
    near(hidden[-1], wanted["tokens"][-1])
    assert pipeline("fill-mask", folder("mlm"), **TRUST)(wanted["blank"])[0]["token_str"] == wanted["word"]


def after_import(job: Callable[[], None]) -> Callable[[], None]:
    """The job in a process that has imported clozebert, for programs that cannot hand `trust_remote_code` on."""

    def imported() -> None:
        sys.path.insert(0, os.environ["DOORS_PACKAGE"])
        import clozebert  # noqa: F401

        job()

    return imported


def run(ways: dict[str, Callable[[], None]], known: dict[tuple[str, str], tuple[str, str]] | None = None) -> None:
    """Try the way whose number is in DOORS_WAY, and print a line that run.py reads.

    Args:
        ways: name -> job, which raises where something is wrong.
        known: (form, way) -> (a part of the error's message, whose it is and why).
    """
    number = int(os.environ.get("DOORS_WAY", "0"))
    way = list(ways)[number]
    result: dict[str, Any] = {"way": way, "ways": len(ways)}
    part, whose = (known or {}).get((FORM, way), ("", ""))
    try:
        ways[way]()
    except BaseException as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
        result["error"] = " ".join(message.split())
        result["whose"] = whose if part and part in result["error"] else "not known"
    else:
        result["difference"] = max(_largest, default=None)
        result["is_mended"] = bool(part)
    names = ["transformers", "torch", *sys.argv[1:]]
    result["versions"] = {}
    for name in names:
        try:
            result["versions"][name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            result["versions"][name] = ""
    print("\nDOOR " + json.dumps(result), flush=True)
    os._exit(0)  # some programs leave threads that keep a process alive
