"""How many processes a run has, and which of them this one is."""

import os


def process_rank() -> int:
    """The number that `torchrun` or `accelerate launch` gave this process; 0 if it was started by itself."""
    return int(os.environ.get("RANK", "0"))


def launched_processes() -> int:
    """The number of processes of this run, by what its launcher says."""
    return int(os.environ.get("WORLD_SIZE", "1"))
