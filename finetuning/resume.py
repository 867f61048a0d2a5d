"""Resumes a fine-tuning run: finds the checkpoint, and checks that the data and settings are the same."""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from ..utils.errors import UserError, first_line
from ..utils.files import WEIGHTS, written_in
from ..utils.untrusted import check_model_folder, read_json_object
from .arguments import comparable
from .reports import RESULTS_FILE
from .windows import Window

if TYPE_CHECKING:
    from .run import FinetuningRun

SETTINGS_FILE = "finetuning_settings.json"
AFRESH = "--overwrite_output_dir in place of --resume_from_checkpoint"


def settings_of(run: "FinetuningRun") -> dict[str, Any]:
    """The settings that prediction needs to treat text as training did, and that a resumed run must match."""
    return {
        "task": run.task.task_type,
        **run.facts,
        "max_seq_length": run.maker.max_seq_length,
        "window_overlap": run.maker.overlap,
        "label_names": run.task.label_names,
        "target_mean": run.task.target_mean,
        "target_scale": run.task.target_scale,
        "learning_rate": run.training.learning_rate,
        "num_train_epochs": run.training.num_train_epochs,
        "per_device_train_batch_size": run.training.per_device_train_batch_size,
        "num_processes": run.training.world_size,  # Trainer finds the step in an epoch by it
        "data": {split: fingerprint(windows) for split, windows in run.windows.items()},
        "encoder": embeddings_fingerprint(run.model),
        "arguments": {**comparable(run.arguments), "seed": run.seed},
    }


def read_settings(name_or_path: str) -> dict[str, Any]:
    """The settings saved beside a fine-tuned model, in a folder or on the Hub; empty if there are none."""
    path = Path(name_or_path, SETTINGS_FILE)
    if not os.path.isdir(name_or_path):
        check_model_folder(name_or_path)
        try:
            path = Path(hf_hub_download(name_or_path, SETTINGS_FILE))
        except LocalEntryNotFoundError as error:  # no network, or the Hub has a fault; the model may be in the cache
            if try_to_load_from_cache(name_or_path, SETTINGS_FILE) is not _CACHED_NO_EXIST:
                warnings.warn(
                    f"{SETTINGS_FILE} of {name_or_path} cannot be looked up ({first_line(error.__cause__ or error)}): "
                    "if clozebert fine-tuned this model, long texts and pairs may be read otherwise than in training",
                    stacklevel=2,
                )
            return {}
        except (OSError, ValueError, HfHubHTTPError):  # no such file, or no such repository
            return {}
    settings = read_json_object(path) if path.exists() else {}
    for name in ("max_seq_length", "window_overlap"):
        if not isinstance(settings.get(name, 0), int):
            raise UserError(f"{path}: {name}={settings[name]!r} must be a whole number")
    return settings


def finished_results(wanted: str | None, folder: str, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The results of the run in a folder if "latest" would resume it and it is finished; else None.

    Raises:
        UserError: that run had other settings.
    """
    paths = [Path(folder, name) for name in (RESULTS_FILE, SETTINGS_FILE)]
    if wanted != "latest" or not all(path.exists() for path in paths) or not written_in(Path(folder), [WEIGHTS]):
        return None
    results, before = map(read_json_object, paths)
    if "seeds" in results:  # the means of other runs, in folders of their own
        return None
    refuse_other_settings(Path(folder), before, settings)
    return results


def fingerprint(windows: Sequence[Window]) -> str:
    """A short hash of the model's inputs; a resumed run uses it to check that the data is the same."""
    digest = hashlib.sha256()
    for window in windows:
        types = window.token_type_ids
        ids = window.input_ids.tolist(), None if types is None else types.tolist()
        digest.update(repr((*ids, window.example, window.target)).encode())
    return digest.hexdigest()[:16]


def embeddings_fingerprint(model: Any) -> str:
    """A short hash of a model's token embeddings, which identifies an encoder whatever its path."""
    table_VE = model.get_input_embeddings().weight.detach().float().cpu().contiguous()
    return hashlib.sha256(table_VE.numpy()).hexdigest()[:16]


def checkpoint_to_resume(wanted: str | None, folder: str, settings: dict[str, Any]) -> str | None:
    """The checkpoint to resume from: `wanted`, or for "latest" the newest complete one; None: start a new run."""
    if wanted is None:
        return None
    checkpoint = newest_checkpoint(folder) if wanted == "latest" else wanted
    if checkpoint is None or Path(checkpoint).resolve().parent != Path(folder).resolve():
        _refuse_to_replace_a_model(Path(folder), wanted, settings)
    if checkpoint is None:
        return None
    if not _is_whole(checkpoint):
        raise UserError(f"--resume_from_checkpoint {checkpoint}: no trainer_state.json in it, so it is not complete")
    for pattern in ("optimizer*", "scheduler.pt", "rng_state*.pth"):  # Trainer would go on without them
        if not any(Path(checkpoint).glob(pattern)):
            raise UserError(
                f"--resume_from_checkpoint {checkpoint}: {pattern} is missing in it; copy it there, name another "
                f"checkpoint, or begin afresh with {AFRESH}"
            )
    _check_best(checkpoint, folder)
    # The checkpoint may be of a run in another folder. A copy may have no settings beside it.
    homes = {Path(checkpoint).resolve().parent: "leave out --resume_from_checkpoint"}
    homes[Path(folder).resolve()] = AFRESH
    for home, way_out in homes.items():
        path = home / SETTINGS_FILE
        if path.exists():
            refuse_other_settings(home, read_json_object(path), settings, way_out=way_out)
    return checkpoint


def _refuse_to_replace_a_model(folder: Path, wanted: str, settings: dict[str, Any]) -> None:
    """Raise if a folder that a run begins in holds another model, such as the encoder, which the run would replace."""
    if not written_in(folder, [WEIGHTS]):
        return
    path = folder / SETTINGS_FILE
    if not path.exists():
        raise UserError(
            f"--resume_from_checkpoint {wanted}: {folder} holds a model and no run to resume; give another --output_dir"
        )
    refuse_other_settings(folder, read_json_object(path), settings, way_out=AFRESH)


def refuse_other_settings(
    folder: Path, before: dict[str, Any], settings: dict[str, Any], *, way_out: str = AFRESH
) -> None:
    """Raise if a run in `folder` had other `settings_of` than this one.

    Args:
        way_out: the end of the message: what begins a new run instead.
    """
    now = json.loads(json.dumps(settings))
    if before.get("encoder", now["encoder"]) != now["encoder"]:
        raise UserError(
            f"--resume_from_checkpoint: the run in {folder} began from another encoder than --model_name_or_path names "
            f"now; give the one that it began from, or {way_out}"
        )
    pairs = [(key, before.get("arguments", {}).get(key, value), value) for key, value in now["arguments"].items()]
    pairs += [(key, before.get(key, value), value) for key, value in now.items() if key != "arguments"]
    for key, earlier, value in pairs:
        if earlier != value:
            raise UserError(
                f"--resume_from_checkpoint: the run in {folder} had {key}={earlier!r}, now it is {value!r}; "
                f"give the same flags and data, or {way_out}"
            )


def _check_best(checkpoint: str, folder: str) -> None:
    """Raise if the run's best checkpoint so far is gone: the result of the run may be its weights."""
    state = read_json_object(Path(checkpoint, "trainer_state.json"))
    best, step = state.get("best_model_checkpoint"), state.get("best_global_step")
    here = os.path.join(folder, f"checkpoint-{step}")
    if best and not os.path.isdir(best) and not os.path.isdir(here):
        raise UserError(
            f"--resume_from_checkpoint {checkpoint}: the best checkpoint of its run, {best}, is gone; copy it to {here}"
        )


def remove_checkpoints(folder: str, *, keep: str | None) -> None:
    """Delete the checkpoints of a finished run, except the one to `keep`."""
    for path in _checkpoints(folder):
        if keep is None or os.path.basename(path) != os.path.basename(keep):
            shutil.rmtree(path)


def _checkpoints(folder: str) -> list[str]:
    """The folders of a run's checkpoints, sorted by step."""
    names = [name for name in os.listdir(folder) if re.fullmatch(r"checkpoint-\d+", name)]
    return [os.path.join(folder, name) for name in sorted(names, key=lambda name: int(name.split("-")[1]))]


def newest_checkpoint(folder: str) -> str | None:
    """The complete checkpoint with the most steps; one that was half written when the run died is skipped."""
    whole = [path for path in _checkpoints(folder) if _is_whole(path)]
    return whole[-1] if whole else None


def _is_whole(checkpoint: str) -> bool:
    """Whether a checkpoint is complete: Trainer writes trainer_state.json last."""
    try:
        state = read_json_object(Path(checkpoint, "trainer_state.json"))
    except UserError:  # no such file, or not a JSON object
        return False
    return isinstance(state.get("global_step"), int)
