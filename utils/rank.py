"""Which of a run's processes this one is."""

import os


def process_rank() -> int:
    """The number that `torchrun` or `accelerate launch` gave this process; 0 if it was started by itself."""
    return int(os.environ.get("RANK", "0"))
