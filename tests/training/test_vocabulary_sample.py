"""`--vocabulary_sample`: the gradient does not depend on the split, a resume is exact, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_helpers import MODEL_FLAGS, flags, make_corpus, model_config, run_forked, run_here, settings
from safetensors.torch import load_file

from clozebert import ClozeBertForMaskedLM
from clozebert.corpus import BatchStream, Corpus, Masking, Mixture
from clozebert.corpus.vocabulary_sample import VocabularySampler
from clozebert.scripts import pretrain_mlm
from clozebert.training import PretrainingArguments, checks
from clozebert.training.batches import make_sampler
from clozebert.training.planning.memory_and_time import forward_flops
from clozebert.training.prefetch import StepLoader, count_predicted
from clozebert.training.runtime.machine import make_accelerator
from clozebert.training.step import accumulate_gradient
from clozebert.utils.errors import UserError


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    make_corpus(folder)
    return folder


def have_same_weights(one: Path, other: Path) -> bool:
    of_one, of_other = (load_file(folder / "model.safetensors") for folder in (one, other))
    return all(torch.equal(value, of_other[name]) for name, value in of_one.items())


def test_every_split_of_a_batch_gives_the_same_gradient(prepared: Path) -> None:
    corpus = Corpus(prepared / "corpus")
    config = model_config(initializer_range=0.2)
    counts = torch.arange(config.vocab_size).numpy()
    stream = BatchStream(
        corpus, max_seq_length=40, global_batch_size=8, masking=Masking(rate=0.3), seed=5,
        vocabulary=VocabularySampler(counts, size=20, seed=5),
    )  # fmt: skip
    torch.manual_seed(3)
    model, accelerator = ClozeBertForMaskedLM(config).double(), make_accelerator(mixed_precision="no", use_cpu=True)
    found = []
    for micro_batches in (1, 2, 4):
        model.zero_grad()
        batches, num_predicted = StepLoader(stream, 0, 1, micro_batches)(2)
        assert num_predicted == sum(map(count_predicted, batches))
        loss = accumulate_gradient(model, batches, num_predicted=num_predicted, accelerator=accelerator)
        found.append([loss, *(parameter.grad.clone() for parameter in model.parameters())])
    for of_split in found[1:]:
        for one, other in zip(found[0], of_split, strict=True):
            assert (one - other).norm() <= 1e-9 * one.norm()


def test_frequencies_are_those_of_the_text(prepared: Path) -> None:
    arguments = PretrainingArguments(**settings(prepared, output_dir="o", max_steps=5, vocabulary_sample=12))
    mixture = Mixture(arguments.corpus)
    sampler = make_sampler(arguments, mixture, vocab_size=128, seed=7)
    assert sampler is not None
    documents = [mixture.corpora[0].document(index) for index in range(mixture.num_documents)]
    counts = torch.bincount(torch.cat([torch.tensor(one.astype("int64")) for one in documents]), minlength=128)
    expected = VocabularySampler(counts.numpy(), size=12, seed=7)
    assert sampler.log_rates.tolist() == expected.log_rates.tolist()


def test_a_sample_as_large_as_the_vocabulary_changes_nothing(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    run_here(tmp_path, tmp_path / "all", max_steps=3, eval_steps=0)
    run_here(tmp_path, tmp_path / "sampled", max_steps=3, eval_steps=0, vocabulary_sample=10_000)
    assert have_same_weights(tmp_path / "all", tmp_path / "sampled")


def test_a_run_that_is_killed_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    common = {"vocabulary_sample": 16, "max_steps": 6, "save_steps": 2, "eval_steps": 0}
    run_here(tmp_path, tmp_path / "whole", dataloader_num_workers=1, **common)
    run_forked(tmp_path, tmp_path / "parts", die_at=4, resume_from_checkpoint="latest", **common)
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    run_here(tmp_path, tmp_path / "parts", resume_from_checkpoint="latest", **common)
    assert have_same_weights(tmp_path / "whole", tmp_path / "parts")
    # It is scored on the whole vocabulary, and it did learn from a sample.
    run_here(tmp_path, tmp_path / "all", **{**common, "vocabulary_sample": 10_000})
    assert not have_same_weights(tmp_path / "whole", tmp_path / "all")
    assert json.loads((tmp_path / "whole" / "all_results.json").read_text())["eval_loss"] > 0


def test_a_resume_with_another_sample_is_refused(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    common = {"max_steps": 4, "save_steps": 2, "eval_steps": 0}
    run_here(tmp_path, tmp_path / "run", vocabulary_sample=16, **common)
    given = settings(tmp_path, output_dir=tmp_path / "run", resume_from_checkpoint="latest", **common)
    with pytest.raises(UserError, match="vocabulary_sample=16 there, vocabulary_sample=20 here"):
        pretrain_mlm.main(flags({**MODEL_FLAGS, **given, "vocabulary_sample": 20}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocabulary_sample": -1}, "vocabulary_sample=-1 must be at least 0"),
        ({"vocabulary_sample": 9, "teacher_name_or_path": "teacher"}, "a teacher predicts the whole vocabulary"),
    ],
)
def test_mistakes_are_errors(prepared: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        PretrainingArguments(**settings(prepared, output_dir="o", **changes))


def test_sharded_weights_are_refused(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = PretrainingArguments(**settings(prepared, output_dir="o", vocabulary_sample=9))
    checks.check_sample(arguments)
    monkeypatch.setattr(checks, "is_sharded", lambda: True)
    with pytest.raises(UserError, match="--vocabulary_sample 0"):
        checks.check_sample(arguments)


def test_flops_count_the_sample_and_the_label() -> None:
    config = model_config()
    size = config.embedding_size or config.hidden_size
    given = {"tokens": 1000, "length": 40, "predicted": 0.3, "reads": True}
    whole, sampled = (forward_flops(config, vocabulary_sample=sample, **given) for sample in (0, 9))
    assert whole - sampled == pytest.approx(2 * 300 * size * (config.vocab_size - 10))
    assert forward_flops(config, vocabulary_sample=config.vocab_size, **given) == whole
