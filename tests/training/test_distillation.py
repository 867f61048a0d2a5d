"""Distillation: the loss against NumPy, a teacher that nothing changes, and a run with one."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from pretraining_helpers import make_corpus, make_tokenizer, model_config, run_forked, run_here
from safetensors.torch import load_file
from torch.nn import functional as F

from clozebert import ClozeBertForMaskedLM
from clozebert.corpus import BatchStream, Corpus, Masking
from clozebert.training.distillation import TEACHER_SHARE, Distillation, _Imitation
from clozebert.training.initialization.initial_model import fingerprint_of_model
from clozebert.training.initialization.rebuilding import evenly_spaced, take_layers
from clozebert.training.prefetch import model_inputs
from clozebert.training.reporting import doctor
from clozebert.utils.errors import UserError


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def make_batch(prepared: Path) -> Any:
    stream = BatchStream(
        Corpus(prepared / "corpus"), max_seq_length=40, global_batch_size=4, masking=Masking(rate=0.3), seed=0
    )
    return stream.batch(0)


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def states_and_logits(model: ClozeBertForMaskedLM, batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """Last hidden states [M, D] and logits [M, V] at the masked tokens, one document at a time."""
    ids, states, logits = torch.from_numpy(batch.input_ids[0]), [], []
    with torch.no_grad():
        for begin, end in zip(batch.cu_seq_lens[:-1], batch.cu_seq_lens[1:], strict=True):
            states.append(model.model(ids[begin:end][None]).last_hidden_state[0])
            logits.append(model(ids[begin:end][None]).logits[0])
    at = batch.masked_positions
    return torch.cat(states).numpy()[at], torch.cat(logits).numpy()[at]


@pytest.mark.parametrize("recurs", [False, True])
@pytest.mark.parametrize(("same_size", "rows"), [(True, 64), (False, 61), (False, 70)])
def test_the_loss_is_the_formula(prepared: Path, same_size: bool, rows: int, recurs: bool) -> None:
    """Also of a batch whose predicted tokens are filled up with some that do not count."""
    batch = make_batch(prepared)
    sizes = {} if same_size else {"hidden_size": 24, "vocab_size": rows}
    student = ClozeBertForMaskedLM(model_config(num_hidden_layers=1, **sizes)).double().eval()
    teacher = ClozeBertForMaskedLM(model_config()).double()
    both = Distillation(student, teacher)
    inputs = {**model_inputs(batch, recurs=recurs), "num_items_in_batch": torch.tensor(7.0)}
    with torch.no_grad():
        assert both(**inputs).loss == student(**inputs).loss
    both.train()
    assert student.training
    assert not teacher.training
    loss = both(**inputs, loss_only=True).loss
    (g, found), (h, wanted) = states_and_logits(student.eval(), batch), states_and_logits(teacher, batch)
    log_q = log_softmax(found)
    entropy = -log_q[np.arange(len(batch.labels)), batch.labels].sum()
    # The teacher's rows that the student lacks are left out; to those that the teacher lacks it gives 0.
    rows = min(found.shape[1], wanted.shape[1])
    log_p = log_softmax(wanted[:, :rows])
    divergence = (np.exp(log_p) * (log_p - log_q[:, :rows])).sum()
    expected = (1 - TEACHER_SHARE) * entropy + TEACHER_SHARE * divergence
    if same_size:
        expected += (1 - (g * h).sum(-1) / np.linalg.norm(g, axis=-1) / np.linalg.norm(h, axis=-1)).sum()
    # Softmax and cosine are in float32; measured: 2e-8.
    assert loss.item() == pytest.approx(expected / 7, rel=1e-6)
    loss.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(parameter.grad is not None for name, parameter in student.named_parameters() if "norm" in name)


# Largest error of a gradient, relative to its parts. Measured: 8e-7, 0.004, 0.0005.
BOUNDS = {torch.float32: 3e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@pytest.mark.parametrize(("dtype", "bound"), BOUNDS.items(), ids=str)
def test_loss_and_gradient_in_every_precision(dtype: torch.dtype, bound: float) -> None:
    """Against autograd in float64, under a scaled loss: of every logit, the small ones too."""
    torch.manual_seed(0)
    logits, wanted = (torch.randn(700, 3000).mul(3).to(dtype) for _ in range(2))
    labels = torch.randint(0, 3000, (700,)).masked_fill(torch.rand(700) < 0.2, -100)
    logits.requires_grad_()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        loss = _Imitation.apply(logits, wanted, labels, TEACHER_SHARE)
    (1024 * loss).backward()
    exact = logits.detach().double().requires_grad_()
    entropy = F.cross_entropy(exact, labels, reduction="sum")
    divergence = F.kl_div(exact.log_softmax(-1), wanted.double().softmax(-1), reduction="none").sum(-1)
    divergence = divergence.masked_fill(labels == -100, 0).sum()
    expected = (1 - TEACHER_SHARE) * entropy + TEACHER_SHARE * divergence
    assert loss.item() == pytest.approx(
        expected.item(), rel=1e-6
    )  # measured: 7e-8; a dot product under autocast had 8e-5 in bf16
    (1024 * expected).backward()
    # q - w p - (1 - w) at the token may cancel: relative to all of it.
    size = exact.detach().softmax(-1) + TEACHER_SHARE * wanted.double().softmax(-1)
    size = 1024 * (size + (1 - TEACHER_SHARE) * F.one_hot(labels.clamp(min=0), 3000))
    # Smaller ones are below what fp16 holds in full.
    counts = (labels != -100)[:, None] & (size > 1e-4)
    error = ((logits.grad.double() - exact.grad).abs() / size)[counts].max()
    assert error <= bound
    assert not logits.grad[labels == -100].any()


@pytest.mark.parametrize("labels", [[], [-100, -100]], ids=["none", "none that counts"])
def test_a_step_in_which_nothing_is_masked_has_no_loss(prepared: Path, labels: list[int]) -> None:
    both = Distillation(ClozeBertForMaskedLM(model_config()), ClozeBertForMaskedLM(model_config())).train()
    inputs = model_inputs(make_batch(prepared))
    inputs |= {"masked_positions": torch.full((len(labels),), 2), "labels": torch.tensor(labels, dtype=torch.long)}
    loss = both(**inputs, num_items_in_batch=torch.tensor(0.0)).loss
    loss.backward()
    assert loss == 0
    gradients = [parameter.grad for parameter in both.student.parameters() if parameter.grad is not None]
    assert gradients
    assert not any(gradient.any() for gradient in gradients)


def test_layers_are_spaced_evenly_with_both_ends() -> None:
    assert evenly_spaced(12, 6) == [0, 2, 4, 7, 9, 11]
    assert evenly_spaced(22, 1) == [0]
    assert evenly_spaced(4, 4) == [0, 1, 2, 3]


def test_a_model_of_all_layers_is_the_model() -> None:
    model = ClozeBertForMaskedLM(model_config()).eval()
    ids = torch.arange(5, 25)[None]
    assert torch.equal(take_layers(model, [0, 1])(ids).logits, model(ids).logits)
    one = take_layers(model, [1])
    assert torch.equal(one.model.layers[0].attention.o_proj.weight, model.model.layers[1].attention.o_proj.weight)


@pytest.fixture(scope="module")
def teacher(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher") / "model"
    run_here(prepared, folder, max_steps=40)
    return folder


def die_in_forward(batch: int) -> None:
    """Let this process be killed in the forward pass of a micro-batch, counted from 1."""
    forward, calls = Distillation.forward, [0]

    def dying(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == batch:
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(self, *args, **kwargs)

    Distillation.forward = dying  # type: ignore[method-assign]


def test_a_run_with_a_teacher_follows_it(prepared: Path, teacher: Path, tmp_path: Path) -> None:
    """Two processes end with the weights of one, resumed or not, and nearer to the teacher than without it."""
    flags: dict[str, Any] = {"num_hidden_layers": 1, "max_steps": 20, "save_steps": 10}
    with_it = {**flags, "teacher_name_or_path": str(teacher)}
    before = {path.name: path.read_bytes() for path in teacher.iterdir() if path.is_file()}
    assert run_forked(prepared, tmp_path / "one", **with_it) == [0]
    assert run_forked(prepared, tmp_path / "two", processes=2, **with_it) == [0, 0]
    assert run_forked(prepared, tmp_path / "cut", prelude=lambda rank: die_in_forward(30), **with_it) == [-9]
    assert run_forked(prepared, tmp_path / "cut", resume_from_checkpoint="latest", **with_it) == [0]
    assert run_forked(prepared, tmp_path / "alone", **flags) == [0]
    one, two, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two", "cut"))
    for name, tensor in one.items():
        assert torch.equal(tensor, cut[name])
        # Measured: 3e-6; the processes' parts are summed in another order.
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=1e-4)
    assert before == {path.name: path.read_bytes() for path in teacher.iterdir() if path.is_file()}

    batch = make_batch(prepared)
    wanted = log_softmax(states_and_logits(ClozeBertForMaskedLM.from_pretrained(teacher), batch)[1])

    def divergence(name: str) -> float:
        model = ClozeBertForMaskedLM.from_pretrained(tmp_path / name)
        found = log_softmax(states_and_logits(model, batch)[1])
        return float((np.exp(wanted) * (wanted - found)).sum(-1).mean())

    assert divergence("one") < 0.9 * divergence("alone")


@pytest.mark.parametrize("has_teacher", [True, False])
def test_the_loss_of_distillation_is_not_compared_with_that_of_validation(
    prepared: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_teacher: bool
) -> None:
    """Else a run of more than two epochs is told that it learns by heart."""
    compared: list[float | None] = []
    labels: list[str] = []

    def repetition(vitals: doctor.Vitals) -> None:
        compared.append(vitals.train_loss)

    def note_labels(self: Figure, *places: Any, **options: Any) -> None:
        labels.extend(text.get_text() for text in self.axes[0].get_legend().get_texts())

    monkeypatch.setattr(doctor, "repetition", repetition)
    monkeypatch.setattr(Figure, "savefig", note_labels)
    run_here(prepared, tmp_path / "run", max_steps=3, **({"teacher_name_or_path": teacher} if has_teacher else {}))
    assert [loss is None for loss in compared] == [has_teacher]
    assert labels == ["training (loss of distillation)" if has_teacher else "training", "validation"]


def test_a_run_goes_on_with_the_same_teacher_wherever_it_lies(
    prepared: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its content is compared, not its path, which is private."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(teacher, "here")
    shutil.copytree(teacher, "there/again")
    run_here(prepared, tmp_path / "run", max_steps=4, teacher_name_or_path="here")
    checkpoint = tmp_path / "run" / "checkpoint-4"
    assert "here" not in (checkpoint / "training_state" / "state.json").read_text()
    assert "| teacher_name_or_path | here |" in (checkpoint / "README.md").read_text()
    again = {"max_steps": 5, "resume_from_checkpoint": "latest"}
    run_here(prepared, tmp_path / "run", **again, teacher_name_or_path=str(tmp_path / "there" / "again"))
    card = (tmp_path / "run" / "README.md").read_text()
    assert "| teacher_name_or_path | again |" in card
    assert str(tmp_path) not in card
    ClozeBertForMaskedLM(model_config()).save_pretrained("here")
    with pytest.raises(UserError, match=r"teacher fingerprint \w{12}… there, \w{12}… here"):
        run_here(prepared, tmp_path / "run", **{**again, "max_steps": 6}, teacher_name_or_path="here")
    with pytest.raises(UserError, match=r"teacher fingerprint \w{12}… there, none here"):
        run_here(prepared, tmp_path / "run", **{**again, "max_steps": 6})


def test_a_teacher_on_the_hub_is_the_same_as_in_a_folder(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "models--someone--teacher"
    shutil.copytree(teacher, place / "snapshots" / "abc", ignore=shutil.ignore_patterns("checkpoint-*"))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    found = [fingerprint_of_model(name, flag="teacher") for name in ("someone/teacher", str(teacher))]
    assert found[0] == found[1]
    with pytest.raises(UserError, match="teacher='someone/else': "):
        fingerprint_of_model("someone/else", flag="teacher")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 32}, "has 32 rows, and the tokenizer 61 tokens"),
        ({"pad_token_id": 3}, "has pad_token_id=3, and the tokenizer 0"),
        ({}, "has 'v7' as token 12, and the tokenizer 'w7'"),
        ({"max_position_embeddings": 32}, "max_seq_length=40 exceeds the 32 tokens"),
    ],
)
def test_a_teacher_that_cannot_read_the_rows_is_refused(
    prepared: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    ClozeBertForMaskedLM(model_config(**changes)).save_pretrained(tmp_path / "teacher")
    if not changes:  # nothing but the tokenizer beside it tells
        make_tokenizer(56).save_pretrained(tmp_path / "teacher")
        path = tmp_path / "teacher" / "tokenizer.json"
        path.write_text(path.read_text().replace('"w7"', '"v7"'))
    with pytest.raises(UserError, match=message):
        run_here(prepared, tmp_path / "out", max_steps=9, teacher_name_or_path=str(tmp_path / "teacher"))
    assert not (tmp_path / "out").exists()
