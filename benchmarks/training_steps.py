"""Training one step at a time, for both sides of `learning.py`: transformers' example script, and our own loop."""

import itertools
from collections.abc import Iterator
from typing import Any

ROW = 128


def grouped_rows(corpus_folder: str) -> Any:
    """[rows, 128] token ids: all documents with special tokens, joined and cut into rows; the remainder is dropped."""
    import numpy as np

    from clozebert.corpus import Corpus

    corpus = Corpus(corpus_folder)
    pieces = []
    for number in range(len(corpus)):
        pieces += [[corpus.cls_token_id], corpus.document(number), [corpus.sep_token_id]]
    joined = np.concatenate(pieces).astype(np.int64)
    return joined[: len(joined) // ROW * ROW].reshape(-1, ROW)


def script_steps(
    model: Any,
    corpus: str,
    tokenizer: Any,
    *,
    steps: int,
    learning_rate: float,
    rows: int,
    bf16: bool,
) -> Iterator[None]:
    """Train any masked-LM model of transformers as in `run_mlm_no_trainer.py`, in float32 or under bf16 autocast.

    Documents are joined with their special tokens and cut into rows of 128; masks of 15 % are drawn for each batch.
    AdamW has linear decay to zero, and warm-up for the first 1/20 of the steps. The last batch of an epoch is left out
    if it has fewer rows.
    """
    import torch
    from transformers import DataCollatorForLanguageModeling, get_scheduler

    no_decay = ("bias", "LayerNorm.weight", "norm.weight")
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if not name.endswith(no_decay)], "weight_decay": 0.01},
        {"params": [p for name, p in named if name.endswith(no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate)
    schedule = get_scheduler("linear", optimizer, num_warmup_steps=steps // 20, num_training_steps=steps)
    loader = torch.utils.data.DataLoader(
        [{"input_ids": row} for row in torch.from_numpy(grouped_rows(corpus))],
        shuffle=True,
        batch_size=rows,
        drop_last=True,
        collate_fn=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
    )
    model.train()
    for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield


def our_steps(recipe: str, corpus: str, tokenizer_name: str, folder: str, **flags: Any) -> Iterator[None]:
    """The steps of our own loop, without its logging and evaluation."""
    from clozebert.training.arguments import PretrainingArguments
    from clozebert.training.loop import Pretraining
    from clozebert.training.run_settings import make_config, split_settings
    from clozebert.training.runtime.machine import seed_step
    from clozebert.training.step import accumulate_gradient, clip_gradient, update_weights

    flags |= {"corpus": corpus, "tokenizer_name": tokenizer_name, "output_dir": folder, "disable_tqdm": True}
    settings, model = split_settings(recipe, flags)
    run = Pretraining(PretrainingArguments(**settings), make_config(model))
    setup = run.setup
    for step in range(run.run.last_step):
        batches, num_predicted = next(setup.loader)
        setup.optimizer.optimizer.set_learning_rate(
            setup.arguments.learning_rate_factor(step), muon=setup.arguments.muon_factor(step)
        )
        seed_step(setup.arguments.seed, step, 0)
        accumulate_gradient(setup.model, batches, num_predicted=num_predicted, accelerator=run.accelerator)
        clip_gradient(setup.model, max_grad_norm=setup.arguments.max_grad_norm, accelerator=run.accelerator)
        update_weights(setup.optimizer, num_broken=0, accelerator=run.accelerator)
        yield
