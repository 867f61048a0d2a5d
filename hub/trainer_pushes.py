"""What `transformers.Trainer` pushes while it trains, made loadable.

On the way (`hub_strategy="every_save"`) Trainer pushes weights, configuration and tokenizer, but no code, so that the
repository cannot be opened before the end of training; and its arguments, as a pickle.
"""

import os
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ..modeling.bundle import write_code

# The Hub leaves out of a push what the repository's .gitignore names.
_IGNORED = "/training_args.bin"


class LoadablePushes(TrainerCallback):
    """`Trainer(..., callbacks=[LoadablePushes()])`: each push opens with `AutoModel`, and none holds the pickle.

    The code, and a `.gitignore` that names the pickle, are put into `output_dir` when training begins.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if not args.push_to_hub or not state.is_world_process_zero:
            return
        os.makedirs(args.output_dir, exist_ok=True)
        path = Path(args.output_dir) / ".gitignore"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        if _IGNORED not in lines:
            path.write_text("\n".join([*lines, _IGNORED]) + "\n", encoding="utf-8")
        if getattr(getattr(model, "config", None), "model_type", None) == "clozebert":
            write_code(args.output_dir)


__all__ = ["LoadablePushes"]
