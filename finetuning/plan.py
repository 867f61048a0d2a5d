"""Says before training what a fine-tuning run is going to do."""

from collections import Counter
from typing import TYPE_CHECKING

from ..utils.wording import counted
from .batches import PackedCollator
from .models import reading_of_pairs

if TYPE_CHECKING:
    from .run import FinetuningRun

_MOST_SHOWN = 20  # labels


def say_plan(run: "FinetuningRun", checkpoint: str | None = None) -> None:
    """Print the task, the numbers of examples, and how the model will be trained."""
    training, task = run.training, run.task
    if training.process_index != 0:
        return
    sizes = ", ".join(
        f"{len(run.splits[split])} {split}" + (f" ({len(w)} windows)" if len(w) != len(run.splits[split]) else "")
        for split, w in run.windows.items()
    )
    print(f"{task.problem_type}, {counted(len(task.label_names), 'label')}; examples: {sizes}")
    if not task.per_token and 1 < len(task.label_names) <= _MOST_SHOWN:
        numbers = Counter(name for example in run.splits["train"] for name in example.labels)
        print(f"labels: {', '.join(f'{name} ({numbers[name]})' for name in task.label_names)}")
    if "text_column" in run.facts:
        texts = [run.facts["text_column"], run.facts["text_pair_column"]]
        print(f"columns: text {' + '.join(name for name in texts if name)}, label {run.facts['label_column']}")
    if run.model.drops_head:
        print("the model's own head gives other answers: a new one is trained in its place")
    if run.facts.get("text_pair_column") is not None:
        print(f"pairs: the classifier {reading_of_pairs(run.model)}")
    if "tag_scheme" in run.facts:
        scheme = run.facts["tag_scheme"]
        print("tags: each word by itself (plain)" if scheme == "plain" else f"tags: of entities ({scheme})")
    accumulation = training.gradient_accumulation_steps
    epochs = f"{training.num_train_epochs:g} epoch{'' if training.num_train_epochs == 1 else 's'}"
    length = epochs if training.max_steps < 0 else counted(training.max_steps, "step")
    precision = "bf16" if training.bf16 else "fp16" if training.fp16 else None
    print(
        f"{length} of batches of {training.per_device_train_batch_size}"
        f"{'' if accumulation == 1 else f' x {accumulation}'}, "
        f"learning rate {training.learning_rate:g}, seed {training.seed}, "
        f"{'packed' if isinstance(run.collator, PackedCollator) else 'padded'} batches"
        + (f", {precision} (the final scores: float32)" if precision else "")
        + ("" if checkpoint is None else f"; going on from {checkpoint}"),
        flush=True,
    )
