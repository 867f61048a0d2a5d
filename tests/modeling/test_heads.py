"""Losses: their formulas, and that any split of a batch gives the same gradient, for every head and problem type."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import reference
import torch
import transformers
from encoder_cases import PAD, VOCABULARY, arrays, build, gradients, random_ids, same_gradients, tiny_config
from torch.autograd import forward_ad

from clozebert import (
    ClozeBertConfig,
    ClozeBertForImageClassification,
    ClozeBertForMaskedLM,
    ClozeBertForMultipleChoice,
    ClozeBertForQuestionAnswering,
    ClozeBertForSequenceClassification,
    ClozeBertForTokenClassification,
)
from clozebert.modeling.heads import Pooling
from clozebert.modeling.losses import cross_entropy, sampled_cross_entropy
from clozebert.modeling.packed import Packed

ROWS, LENGTH, SHORTEST, CHOICES, LABELS = 8, 11, 4, 3, 5


def text(*shape: int) -> dict[str, torch.Tensor]:
    mask = torch.as_tensor(
        np.arange(shape[-1]) < np.random.default_rng(1).integers(SHORTEST, shape[-1] + 1, shape[:-1])[..., None]
    )
    ids = torch.as_tensor(random_ids(*shape)).masked_fill(~mask, PAD)
    return {"input_ids": ids, "attention_mask": mask.long()}


def some(labels: torch.Tensor, share: float = 0.6) -> torch.Tensor:
    """Labels of a different number of tokens in each row, none in the second row."""
    chosen = torch.rand(labels.shape, generator=torch.Generator().manual_seed(3)) < share
    chosen[1] = False
    return labels.masked_fill(~chosen, -100)


@dataclass
class Head:
    """A class, its configuration, a batch and its labels, and the reference's loss."""

    model_class: Any
    changes: dict[str, Any]
    inputs: dict[str, torch.Tensor]
    labels: dict[str, torch.Tensor]
    loss: Any
    unlabelled: bool = True  # whether there are labels that count nowhere

    def model(self, **more):
        return build(self.model_class, tiny_config(**{**self.changes, **more}))

    @property
    def items(self):
        return int((next(iter(self.labels.values())) != -100).sum())

    def rows(self, start, stop):
        return {name: x[start:stop] for name, x in {**self.inputs, **self.labels}.items()}


def draw(high, *shape):
    return torch.as_tensor(np.random.default_rng(4).integers(0, high, shape))


HEADS = {
    "masked lm": Head(
        ClozeBertForMaskedLM, {}, text(ROWS, LENGTH), {"labels": some(draw(VOCABULARY, ROWS, LENGTH))},
        reference.cross_entropy,
    ),
    "sparse masked lm": Head(
        ClozeBertForMaskedLM, {"sparse_prediction": True}, text(ROWS, LENGTH),
        {"labels": some(draw(VOCABULARY, ROWS, LENGTH))}, None,
    ),
    "token classification": Head(
        ClozeBertForTokenClassification, {}, text(ROWS, LENGTH), {"labels": some(draw(LABELS, ROWS, LENGTH))},
        reference.cross_entropy,
    ),
    "single label": Head(
        ClozeBertForSequenceClassification, {}, text(ROWS, LENGTH), {"labels": draw(LABELS, ROWS)},
        reference.cross_entropy,
    ),
    "several labels": Head(
        ClozeBertForSequenceClassification, {"problem_type": "multi_label_classification"}, text(ROWS, LENGTH),
        {"labels": draw(2, ROWS, LABELS).double()}, reference.binary_cross_entropy, unlabelled=False,
    ),
    "regression": Head(
        ClozeBertForSequenceClassification, {"num_labels": 1}, text(ROWS, LENGTH),
        {"labels": torch.randn(ROWS, dtype=torch.float64)}, reference.mean_squared_error, unlabelled=False,
    ),
    "several regressions": Head(
        ClozeBertForSequenceClassification, {"problem_type": "regression"}, text(ROWS, LENGTH),
        {"labels": torch.randn(ROWS, LABELS, dtype=torch.float64)}, reference.mean_squared_error, unlabelled=False,
    ),
    "multiple choice": Head(
        ClozeBertForMultipleChoice, {}, text(ROWS, CHOICES, LENGTH), {"labels": draw(CHOICES, ROWS)},
        reference.cross_entropy,
    ),
    "question answering": Head(
        ClozeBertForQuestionAnswering, {}, text(ROWS, LENGTH),
        {"start_positions": draw(SHORTEST, ROWS), "end_positions": draw(SHORTEST, ROWS)}, None,
    ),
    "images": Head(
        ClozeBertForImageClassification,
        {"image_size": 12, "patch_size": 4, "num_channels": 2, "positions": "absolute"},
        {"pixel_values": torch.randn(ROWS, 2, 12, 12, dtype=torch.float64)}, {"labels": draw(LABELS, ROWS)},
        reference.cross_entropy,
    ),
}  # fmt: skip


def heads(chosen=lambda head: True):
    return pytest.mark.parametrize(
        "head", [pytest.param(head, id=name) for name, head in HEADS.items() if chosen(head)]
    )


EVERY_HEAD = heads()


@heads(lambda head: head.loss is not None)  # the others' are measured below
@pytest.mark.parametrize("items", [None, 1000])
def test_the_loss_is_its_formula(head, items):
    outputs = head.model()(**head.inputs, **head.labels, num_items_in_batch=items)
    wanted = head.loss(outputs.logits.detach().numpy(), head.labels["labels"].numpy(), items)
    assert outputs.loss.item() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("items", [None, 1000])
def test_the_loss_of_question_answering_is_the_mean_of_two(items):
    """An answer outside the sequence, as windows without one have, counts nowhere."""
    head = HEADS["question answering"]
    starts, ends = (labels.clone() for labels in head.labels.values())
    starts[:2], ends[:2] = torch.tensor([LENGTH, -1]), torch.tensor([LENGTH + 3, -1])
    outputs = head.model()(**head.inputs, start_positions=starts, end_positions=ends, num_items_in_batch=items)
    halves = [
        reference.cross_entropy(logits[2:].detach().numpy(), labels[2:].numpy(), items)
        for logits, labels in ((outputs.start_logits, starts), (outputs.end_logits, ends))
    ]
    assert outputs.loss.item() == pytest.approx(sum(halves) / 2, rel=1e-12)


def test_padding_changes_neither_loss_nor_gradient_of_question_answering():
    """The mean over rows given one at a time, without padding. Measured 0 and 2e-16 of the largest gradient."""
    head = HEADS["question answering"]
    model = head.model()
    found = model(**head.rows(0, ROWS)).loss
    lengths = head.inputs["attention_mask"].sum(1)
    assert lengths.min() < lengths.max()
    alone = [
        model(**{name: x if x.dim() == 1 else x[:, :length] for name, x in head.rows(row, row + 1).items()}).loss
        for row, length in enumerate(lengths)
    ]
    wanted = sum(alone) / ROWS
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
    assert same_gradients(gradients(found, model), gradients(wanted, model)) <= 1e-12


def test_an_answer_on_padding_counts_nowhere():
    head = HEADS["question answering"]
    row = int(head.inputs["attention_mask"].sum(1).argmin())
    starts, ends = (labels.clone() for labels in head.labels.values())
    starts[row], ends[row] = LENGTH - 1, LENGTH - 1
    found = head.model()(**head.inputs, start_positions=starts, end_positions=ends).loss
    starts[row], ends[row] = -100, -100
    assert found.isfinite()
    assert found.item() == head.model()(**head.inputs, start_positions=starts, end_positions=ends).loss.item()


def test_image_embeddings_that_an_adapter_has_wrapped():
    """transformers' ViT runs so, too, and with gradient checkpointing, which asks for the embeddings."""
    peft = pytest.importorskip("peft")
    model = HEADS["images"].model().float().eval()
    model.gradient_checkpointing_enable()
    pixels = HEADS["images"].inputs["pixel_values"].float()
    wanted = model(pixels).logits
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["embeddings"])
    torch.testing.assert_close(peft.get_peft_model(model, settings)(pixel_values=pixels).logits, wanted)


@pytest.mark.parametrize("pooling", ["mean", "max", "attention"])
def test_a_masked_patch_of_an_image_is_not_pooled(pooling):
    """The head over a mean, or else, of the other patches' vectors; what the masked patches show does not matter."""
    head = HEADS["images"]
    model = head.model(classifier_pooling=pooling)
    mask = torch.ones(ROWS, 1 + 9, dtype=torch.long)
    mask[:, [4, 9]] = 0
    pixels = head.inputs["pixel_values"]
    other = pixels.clone()
    other[:, :, 4:8, 0:4] = 7  # the fourth patch of 3 x 3
    found = model(pixels, attention_mask=mask).logits
    torch.testing.assert_close(model(other, attention_mask=mask).logits, found)
    seen = model.model(pixel_values=pixels, attention_mask=mask).last_hidden_state[:, mask[0] != 0]
    torch.testing.assert_close(found, model.classifier(model.head(model.pooling(seen))))


@EVERY_HEAD
@pytest.mark.parametrize("cuts", [(0, 2, 4, 6, 8), (0, 1, 8), (0, 3, 4, 8)], ids=str)
def test_any_split_of_a_batch_gives_the_same_gradient(head, cuts):
    """Measured 1e-15 of the largest gradient."""
    model = head.model()
    whole = model(**head.rows(0, ROWS)).loss
    wanted = gradients(whole, model)
    found = {name: torch.zeros_like(gradient) for name, gradient in wanted.items()}
    total = 0.0
    for start, stop in itertools.pairwise(cuts):
        loss = model(**head.rows(start, stop), num_items_in_batch=head.items).loss
        total += loss.item()
        for name, gradient in gradients(loss, model).items():
            found[name] += gradient
    assert total == pytest.approx(whole.item(), rel=1e-12)
    assert same_gradients(found, wanted) <= 1e-12


@EVERY_HEAD
@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_number_of_items_may_be_a_number_or_a_tensor(head, as_tensor):
    items = torch.tensor(head.items) if as_tensor else head.items
    model = head.model()
    loss = model(**head.rows(0, ROWS), num_items_in_batch=items).loss
    assert loss.item() == pytest.approx(model(**head.rows(0, ROWS)).loss.item(), rel=1e-12)


@heads(lambda head: head.unlabelled)
@pytest.mark.parametrize("items", [None, 0, 7])
def test_a_batch_without_a_label_has_zero_loss_and_zero_gradient(head, items):
    model = head.model()
    nothing = {name: torch.full_like(labels, -100) for name, labels in head.labels.items()}
    loss = model(**head.inputs, **nothing, num_items_in_batch=items).loss
    assert loss.item() == 0.0
    for name, gradient in gradients(loss, model).items():
        assert torch.equal(gradient, torch.zeros_like(gradient)), name


@pytest.mark.parametrize("highest", [-1.0, 0.0, 1.0])
def test_equal_highest_values_share_the_gradient_packed_as_padded(highest):
    """Also where the highest value is 0."""
    pooling = Pooling(ClozeBertConfig(classifier_pooling="max"))
    lengths = [5, 1, 3, 40]
    values_ND = torch.randint(-3, 1, (sum(lengths), 7)).double() + highest
    wanted, found = values_ND.clone().requires_grad_(), values_ND.clone().requires_grad_()
    weights_SD = torch.randn(len(lengths), 7, dtype=torch.double)
    (torch.stack([part.amax(0) for part in wanted.split(lengths)]) * weights_SD).sum().backward()
    packed = Packed.from_lengths(lengths)
    (pooling(found[None], packed=packed) * weights_SD).sum().backward()
    torch.testing.assert_close(found.grad, wanted.grad)


def test_a_pooling_that_is_set_later_counts(tmp_path):
    """It is what is saved, so a model that is loaded again must answer as this one does."""
    model = build(ClozeBertForSequenceClassification, tiny_config(num_labels=3), dtype=torch.float32)
    ids = torch.as_tensor(random_ids(2, 9))
    before = model(ids).logits
    model.config.classifier_pooling = "mean"
    found = model(ids).logits
    assert not torch.allclose(found, before)
    model.save_pretrained(tmp_path)
    assert torch.equal(ClozeBertForSequenceClassification.from_pretrained(tmp_path)(ids).logits, found)
    model.config.classifier_pooling = "attention"
    with pytest.raises(ValueError, match="classifier_pooling='attention' was set after the model was built"):
        model(ids)


def test_labels_that_do_not_fit_decide_nothing():
    model = build(ClozeBertForSequenceClassification, tiny_config(num_labels=3), dtype=torch.float32)
    ids = torch.as_tensor(random_ids(2, 9))
    with pytest.raises(ValueError, match=r"labels of shape \(2, 3\) are several for each text: give them as floats"):
        model(ids, labels=torch.tensor([[1, 0, 1], [0, 0, 1]]))
    with pytest.raises(ValueError, match="problem_type='multi_label_classification'"):
        model(ids, labels=torch.tensor([0.0, 1.0]))
    assert model.config.problem_type is None
    assert model(ids, labels=torch.tensor([[1.0, 0, 1], [0, 0, 1]])).loss > 0
    assert model.config.problem_type == "multi_label_classification"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["cls", "mean", "max", "attention"])
def test_long_documents_are_pooled_in_half_precision_as_in_double(kind, dtype):
    """Packed and as rows of their own; measured: less than half a unit in the last place of 3.

    Sums of 1,200 weights near 1 that end at 256, where bf16 has no 257, are off by 2.9.
    """
    pooling = Pooling(ClozeBertConfig(hidden_size=16, num_attention_heads=2, classifier_pooling=kind))
    if pooling.score is not None:
        torch.nn.init.normal_(pooling.score.weight, std=0.02)
    lengths = [1200, 1, 300]
    x_1ND = (torch.randn(1, sum(lengths), 16) + 1).to(dtype)
    wanted = torch.cat([pooling.to(dtype).double()(part) for part in x_1ND.double().split(lengths, dim=1)])
    pooling.to(dtype)
    tolerance = {"rtol": 0.0, "atol": 4 * torch.finfo(dtype).eps}
    found = pooling(x_1ND, packed=Packed.from_lengths(lengths))
    torch.testing.assert_close(found.double(), wanted, **tolerance)
    alone = torch.cat([pooling(part) for part in x_1ND.split(lengths, dim=1)])
    torch.testing.assert_close(alone.double(), wanted, **tolerance)


@pytest.mark.parametrize("kind", ["cls", "mean", "max", "attention"])
def test_sums_that_exceed_half_precision_are_pooled(kind):
    """8,192 tokens of which a channel is 10: the sum is more than 65,504."""
    pooling = Pooling(ClozeBertConfig(hidden_size=8, num_attention_heads=2, classifier_pooling=kind)).half()
    x_BTD = torch.full((1, 8192, 8), 10.0, dtype=torch.float16)
    for packed in (None, Packed.from_lengths([8192])):
        torch.testing.assert_close(pooling(x_BTD, packed=packed), x_BTD[:, 0], rtol=2e-3, atol=0.0)


@pytest.mark.parametrize("kind", ["cls", "mean", "max", "attention"])
def test_padded_rows_are_pooled_under_autocast(kind):
    """The scores of learned attention are in half precision there, and the states are not. Measured 2e-3."""
    pooling = Pooling(ClozeBertConfig(hidden_size=16, num_attention_heads=2, classifier_pooling=kind))
    x_BTD, mask_BT = torch.randn(3, 9, 16), torch.arange(9) < torch.tensor([[9], [1], [4]])
    with torch.autocast("cpu", torch.bfloat16):
        found = pooling(x_BTD, mask_BT)
    torch.testing.assert_close(found, pooling(x_BTD, mask_BT), rtol=0.0, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_losses_are_computed_in_float32(dtype):
    head = HEADS["masked lm"]
    model = head.model().to(dtype)
    outputs = model(**head.inputs, **head.labels)
    assert outputs.logits.dtype == dtype
    assert outputs.loss.dtype == torch.float32
    wanted = reference.cross_entropy(outputs.logits.detach().double().numpy(), head.labels["labels"].numpy())
    assert outputs.loss.item() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_class_weights_weigh_each_label_and_leave_the_number_of_items(dtype):
    """Against the formula in float64 on the same logits; measured over 200 draws: at most 2e-7 of the loss."""
    torch.manual_seed(0)
    logits_MC, weights_C = torch.randn(7, 3).to(dtype).requires_grad_(), torch.tensor([0.5, 2.0, 0.0])
    labels_M = torch.tensor([0, 1, 2, -100, 1, 1, 0])
    loss = cross_entropy(logits_MC, labels_M, 11, class_weights_C=weights_C)
    kept_M = labels_M != -100
    log_p = logits_MC.detach().double().log_softmax(-1)[kept_M, labels_M[kept_M]]
    assert loss.item() == pytest.approx(-(weights_C[labels_M[kept_M]].double() * log_p).sum().item() / 11, rel=1e-6)
    loss.backward()
    assert logits_MC.grad is not None
    assert logits_MC.grad[2].abs().max() == 0, "a weight of zero"


# ------------------------------------------------------------------------------------------------- sparse prediction


@pytest.mark.parametrize("packed", [False, True])
def test_masked_positions_give_the_loss_and_gradient_of_dense_labels(packed):
    head = HEADS["masked lm"]
    model = head.model()
    if packed:
        lengths = (5, 1, 8, 4)
        positions = torch.cat([torch.arange(n) for n in lengths])[None]
        inputs = {"input_ids": torch.as_tensor(random_ids(1, 18)), "position_ids": positions}
        labels = torch.as_tensor(random_ids(1, 18)).masked_fill(torch.rand(1, 18) < 0.5, -100)
    else:
        inputs, labels = head.inputs, head.labels["labels"]
    places = (labels.flatten() != -100).nonzero().squeeze(1)
    dense = model(**inputs, labels=labels)
    sparse = model(**inputs, masked_positions=places, labels=labels.flatten()[places])
    assert sparse.logits.shape == (len(places), VOCABULARY)
    torch.testing.assert_close(sparse.logits, dense.logits.flatten(0, 1)[places])
    assert sparse.loss.item() == pytest.approx(dense.loss.item(), rel=1e-12)
    assert same_gradients(gradients(sparse.loss, model), gradients(dense.loss, model)) <= 1e-12


def test_masked_positions_without_labels_give_logits_alone():
    head = HEADS["masked lm"]
    outputs = head.model()(**head.inputs, masked_positions=torch.tensor([3, 1]))
    assert outputs.loss is None
    assert outputs.logits.shape == (2, VOCABULARY)


def test_no_masked_position_gives_zero_loss_and_zero_gradient():
    head = HEADS["masked lm"]
    model, nowhere = head.model(), torch.zeros(0, dtype=torch.long)
    outputs = model(**head.inputs, masked_positions=nowhere, labels=nowhere)
    assert outputs.logits.shape == (0, VOCABULARY)
    assert outputs.loss.item() == 0.0
    assert all(not gradient.any() for gradient in gradients(outputs.loss, model).values())


def test_sparse_prediction_predicts_labelled_positions_only_and_the_same_loss():
    dense, sparse = HEADS["masked lm"], HEADS["sparse masked lm"]
    wanted, model = dense.model()(**dense.inputs, **dense.labels), sparse.model()
    found = model(**sparse.inputs, **sparse.labels)
    assert found.logits.shape == (sparse.items, VOCABULARY)
    assert found.loss.item() == pytest.approx(wanted.loss.item(), rel=1e-12)
    assert model(**sparse.inputs).logits.shape == (ROWS, LENGTH, VOCABULARY)


# ------------------------------------------------------------------------------------------------------ under Trainer


class Rows(torch.utils.data.Dataset):
    def __init__(self, head, times=3):
        # Three batches, of other rows each time.
        self.rows = [{name: x[(5 * i) % ROWS] for name, x in head.rows(0, ROWS).items()} for i in range(times * ROWS)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(rows):
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


@EVERY_HEAD
def test_trainer_with_accumulation_gives_the_same_weights(head, tmp_path):
    """Three steps of eight rows, and of four times two: the same weights. Measured 1e-15."""
    trained = []
    for accumulation in (1, 4):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=ROWS // accumulation,
            gradient_accumulation_steps=accumulation, max_steps=3, learning_rate=0.1, optim="sgd", max_grad_norm=0.0,
            lr_scheduler_type="constant", report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, seed=5,
            remove_unused_columns=False, logging_strategy="no",
        )  # fmt: skip
        trainer = transformers.Trainer(head.model(), arguments, train_dataset=Rows(head), data_collator=collate)
        trainer.train()
        trained.append(arrays(trainer.model))
    before = arrays(head.model())
    scale = max(abs(trained[0][name] - before[name]).max() for name in before)
    assert scale > 1e-3
    assert max(abs(trained[0][name] - trained[1][name]).max() for name in before) <= 1e-10 * scale


def test_where_labels_are_not_looked_at_the_kernels_refuse_negative_ones(monkeypatch):
    """On a CUDA device, where looking would wait for it: the index fails there. It is never taken for class 0."""
    monkeypatch.setattr("clozebert.modeling.losses.value_outside", lambda *args, **kwargs: None)
    decoder, log_rates = torch.nn.Linear(4, 5), torch.log(torch.tensor([0.5, 0.5]))
    for labels in (torch.tensor([-1, 2]), torch.tensor([5, 2])):
        with pytest.raises((IndexError, RuntimeError)):
            cross_entropy(torch.randn(2, 5), labels)
        with pytest.raises((IndexError, RuntimeError)):
            sampled_cross_entropy(torch.randn(2, 4), decoder, labels, torch.tensor([1, 4]), log_rates)


def test_the_derivative_of_a_loss_in_every_mode():
    """Forward mode, and several gradients at once, give the gradient that one backward pass gives."""
    generator = torch.Generator().manual_seed(0)
    logits, tangent = torch.randn(2, 7, 5, dtype=torch.float64, generator=generator)
    logits.requires_grad_()
    labels = torch.tensor([0, 4, -100, 2, 2, -100, 1])
    (wanted,) = torch.autograd.grad(cross_entropy(logits, labels), logits)
    factors = torch.tensor([1.0, -3.0], dtype=torch.float64)
    (found,) = torch.autograd.grad(cross_entropy(logits, labels), logits, factors, is_grads_batched=True)
    torch.testing.assert_close(found, factors[:, None, None] * wanted)
    with forward_ad.dual_level():
        loss = cross_entropy(forward_ad.make_dual(logits.detach(), tangent), labels)
        torch.testing.assert_close(forward_ad.unpack_dual(loss).tangent, (wanted * tangent).sum())
