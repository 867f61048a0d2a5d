"""The configuration files for `accelerate launch` that come with the package: `accelerate_*.yaml` in this folder."""

from pathlib import Path

_FOLDER = Path(__file__).parent
LAUNCH_PREFIX = "accelerate_"


def launch_configuration(name: str) -> Path:
    """The path of a launch configuration for Accelerate: `gpus`, `fsdp`, `machines` or `cpu`.

    Raises:
        ValueError: no configuration has that name.
    """
    path = _FOLDER / f"{LAUNCH_PREFIX}{name}.yaml"
    if not path.is_file():
        raise ValueError(f"unknown launch configuration {name!r}; known: {', '.join(list_launch_configurations())}")
    return path


def list_launch_configurations() -> list[str]:
    """The names of the launch configurations."""
    return sorted(path.stem.removeprefix(LAUNCH_PREFIX) for path in _FOLDER.glob(f"{LAUNCH_PREFIX}*.yaml"))
