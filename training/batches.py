"""The training batches of a run, and the share of them that one process takes."""

import dataclasses
from collections.abc import Generator
from typing import Any

from ..configuration import ClozeBertConfig
from ..corpus import BatchStream, Masking, Mixture
from ..corpus.randomness import derive
from ..corpus.text_sample import count_tokens
from ..corpus.vocabulary_sample import VocabularySampler
from .arguments import Phase, PretrainingArguments
from .prefetch import StepLoader, inputs_maker, prefetch


def make_masking(arguments: PretrainingArguments, *, rate: float) -> Masking:
    """The masking that the arguments describe, with a `rate` for training or for validation."""
    return Masking(
        rate=rate, mask_share=arguments.mask_share, random_share=arguments.random_share, unit=arguments.masking_unit
    )


def make_stream(phase: Phase, mixture: Mixture, *, vocab_size: int) -> BatchStream:
    """The global batches of a phase.

    Args:
        vocab_size: the model's, including rows without a token.
    """
    arguments = phase.arguments
    masking = make_masking(arguments, rate=arguments.mlm_probability)
    # A later phase over the same corpus sees it in another order.
    seed = arguments.seed if phase.index == 0 else derive(arguments.seed, phase.index)
    return BatchStream(
        mixture.corpora,
        max_seq_length=arguments.max_seq_length,
        global_batch_size=arguments.batch_size,
        masking=dataclasses.replace(masking, final_rate=arguments.final_mlm_probability),
        seed=seed,
        weights=mixture.shares,
        total_steps=arguments.max_steps,
        vocabulary=make_sampler(arguments, mixture, vocab_size=vocab_size, seed=seed),
    )


def make_sampler(
    arguments: PretrainingArguments, mixture: Mixture, *, vocab_size: int, seed: int
) -> VocabularySampler | None:
    """The sampler of the tokens that predictions are compared with; None: compare with all tokens."""
    size = arguments.vocabulary_sample
    if not 0 < size < vocab_size:
        return None
    counts = count_tokens(mixture, max_seq_length=arguments.max_seq_length, vocab_size=vocab_size)
    return VocabularySampler(counts, size=size, seed=seed)


def load_batches(
    stream: BatchStream, phase: Phase, *, step: int, accelerator: Any, config: ClozeBertConfig
) -> Generator[Any, None, None]:
    """This process' micro-batches for each step of the phase from `step` on, prefetched; see `StepLoader`."""
    processes = accelerator.num_processes
    loader = StepLoader(
        stream,
        accelerator.process_index,
        processes,
        phase.arguments.micro_batches(processes),
        inputs_maker(config, accelerator),
        # Worker processes cannot pin memory; their batches are copied from ordinary memory.
        pins=accelerator.device.type == "cuda" and phase.arguments.dataloader_num_workers == 0,
    )
    return prefetch(
        loader,
        step - phase.first_step,
        phase.num_steps,
        workers=phase.arguments.dataloader_num_workers,
        timeout=phase.arguments.ddp_timeout,
    )
