#!/usr/bin/env python
"""A BERT to compare with: transformers' BertForMaskedLM, trained as its example script run_mlm_no_trainer.py would.

    python benchmarks/reference_bert.py time  --corpus CORPUS --tokenizer_name TOKENIZER --output times.json
    python benchmarks/reference_bert.py train --corpus CORPUS --tokenizer_name TOKENIZER --steps N --output_dir DIR

It reads the corpus that `prepare_corpus` wrote, and has the size of the recipe `tiny` (4 layers of 256, 4.9 M
parameters; tiny has 4.8 M). The manner of the example: documents joined with their special tokens and cut into rows of
128, masks of 15 % drawn for each batch by DataCollatorForLanguageModeling, dropout 0.1, logits of all tokens, AdamW
with linear decay to zero; bf16 autocast, as under `accelerate launch --mixed_precision bf16`. A step has 32 rows, as in
`tiny`; the first 20th of the steps is warm-up.

`time` takes steps of both programs in turn and compares medians, so that neither is measured on a busier machine; the
other figure is the processor's time, which does not count waiting at all.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROW, ROWS = 128, 32
RECIPE = "tiny"


def make_bert(vocab_size: int, pad_token_id: int) -> Any:
    """A BERT of the size of `tiny`: its feed-forward is not gated, so it is wider."""
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=vocab_size,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=768,
            max_position_embeddings=512,
            pad_token_id=pad_token_id,
        )
    )


def grouped_rows(corpus_folder: str) -> Any:
    """[rows, 128] token ids: all documents between their special tokens, joined and cut; the remainder is dropped."""
    import numpy as np

    from clozebert.corpus import Corpus

    corpus = Corpus(corpus_folder)
    pieces = []
    for number in range(len(corpus)):
        pieces += [[corpus.cls_token_id], corpus.document(number), [corpus.sep_token_id]]
    joined = np.concatenate(pieces).astype(np.int64)
    return joined[: len(joined) // ROW * ROW].reshape(-1, ROW)


def bert_steps(
    corpus: str, tokenizer: Any, *, steps: int, learning_rate: float, seed: int
) -> Iterator[tuple[Any, Any]]:
    """Train the BERT in bf16, yielding (model, loss) after each step."""
    import torch

    torch.manual_seed(seed)
    model = make_bert(len(tokenizer), tokenizer.pad_token_id)
    for loss in script_steps(model, corpus, tokenizer, steps=steps, learning_rate=learning_rate, rows=ROWS, bf16=True):
        yield model, loss


def script_steps(
    model: Any,
    corpus: str,
    tokenizer: Any,
    *,
    steps: int,
    learning_rate: float,
    rows: int,
    bf16: bool,
    drop_last: bool = False,
) -> Iterator[Any]:
    """Train any masked-LM model of transformers as `run_mlm_no_trainer.py` does, yielding the loss of each step.

    Args:
        bf16: under autocast; else in float32.
        drop_last: leave out the last batch of an epoch, which has fewer rows.
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
        drop_last=drop_last,
        collate_fn=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
    )
    model.train()
    for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield loss.detach()


def our_steps(recipe: str, corpus: str, tokenizer_name: str, folder: str, **flags: Any) -> Iterator[None]:
    """The steps of our own loop, without its logging and evaluation."""
    from clozebert.training.arguments import PretrainingArguments
    from clozebert.training.loop import Pretraining
    from clozebert.training.machine import seed_step
    from clozebert.training.run_settings import make_config, split_settings
    from clozebert.training.step import accumulate_gradient, clip_gradient, update_weights

    flags |= {"corpus": corpus, "tokenizer_name": tokenizer_name, "output_dir": folder, "disable_tqdm": True}
    settings, model = split_settings(recipe, flags)
    run = Pretraining(PretrainingArguments(**settings), make_config(model))
    setup = run.setup
    for step in range(run.run.last_step):
        batches, num_predicted = next(setup.loader)
        setup.optimizer.optimizer.set_learning_rate(setup.arguments.learning_rate_factor(step))
        seed_step(setup.arguments.seed, step, 0)
        accumulate_gradient(setup.model, batches, num_predicted=num_predicted, accelerator=run.accelerator)
        clip_gradient(setup.model, max_grad_norm=setup.arguments.max_grad_norm, accelerator=run.accelerator)
        update_weights(setup.optimizer, num_broken=0, accelerator=run.accelerator)
        yield


def compare_speed(corpus: str, tokenizer_name: str, *, blocks: int, block: int) -> dict[str, Any]:
    """Seconds of a step of both programs, in turn `block` steps of the one and of the other."""
    from clozebert.corpus.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_name)
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, Iterator[Any]] = {
            "ours": our_steps(RECIPE, corpus, tokenizer_name, folder),
            "bert": bert_steps(corpus, tokenizer, steps=10**6, learning_rate=1e-4, seed=0),
        }
        for side in sides.values():  # what is allocated and chosen once
            for _ in range(2):
                next(side)
        clocks: dict[str, Callable[[], float]] = {"seconds": time.perf_counter, "processor_seconds": time.process_time}
        taken: dict[str, dict[str, list[float]]] = {name: {side: [] for side in sides} for name in clocks}
        for _ in range(blocks):
            for name, side in sides.items():
                begun = {clock: read() for clock, read in clocks.items()}
                for _ in range(block):
                    next(side)
                for clock, read in clocks.items():
                    taken[clock][name].append((read() - begun[clock]) / block)
    medians = {
        clock: {side: round(statistics.median(values), 4) for side, values in of_clock.items()}
        for clock, of_clock in taken.items()
    }
    import torch

    return {
        **{f"{clock}_of_a_step": values for clock, values in medians.items()},
        "bert_over_ours": {clock: round(values["bert"] / values["ours"], 3) for clock, values in medians.items()},
        "blocks": blocks,
        "steps_of_a_block": block,
        "threads": torch.get_num_threads(),
    }


def train(corpus: str, tokenizer_name: str, *, steps: int, learning_rate: float, seed: int, output_dir: str) -> None:
    """Train and save, with the curve of the loss (its mean over every 20 steps)."""
    from clozebert.corpus.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_name)
    losses: list[float] = []
    trained: Any = None
    begun = time.perf_counter()
    for model, loss in bert_steps(corpus, tokenizer, steps=steps, learning_rate=learning_rate, seed=seed):
        trained = model
        losses.append(float(loss))
        if len(losses) % 20 == 0:
            print(f"step {len(losses)}/{steps}  loss {statistics.mean(losses[-20:]):.3f}", flush=True)
    trained.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    facts = {
        "steps": steps,
        "learning_rate": learning_rate,
        "parameters": sum(p.numel() for p in trained.parameters()),
        "seconds": round(time.perf_counter() - begun, 1),
        "train_loss": [round(statistics.mean(losses[i : i + 20]), 4) for i in range(0, len(losses), 20)],
    }
    Path(output_dir, "all_results.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Time, or train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("time", "train"))
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--tokenizer_name", required=True)
    parser.add_argument("--steps", type=int, help="train: optimizer steps")
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--output_dir", help="train: where the model goes")
    parser.add_argument("--blocks", type=int, default=10, help="time: measurements of each program")
    parser.add_argument("--block", type=int, default=4, help="time: steps of a measurement")
    parser.add_argument("--output", help="time: a JSON file for the results")
    arguments = parser.parse_args()
    if arguments.what == "time":
        results = compare_speed(
            arguments.corpus, arguments.tokenizer_name, blocks=arguments.blocks, block=arguments.block
        )
        print(json.dumps(results, indent=1))
        if arguments.output:
            Path(arguments.output).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    elif arguments.steps is None or arguments.output_dir is None:
        parser.error("train needs --steps and --output_dir")
    else:
        train(
            arguments.corpus,
            arguments.tokenizer_name,
            steps=arguments.steps,
            learning_rate=arguments.learning_rate,
            seed=arguments.seed,
            output_dir=arguments.output_dir,
        )


if __name__ == "__main__":
    main()
