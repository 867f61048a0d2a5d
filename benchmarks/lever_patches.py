"""Levers that the package does not have: each function replaces functions of the package in this process.

`levers.py` measures what they are worth.
"""

import types
from typing import Any


def use_polynomials(polynomials: Any) -> None:
    from clozebert.training.optimizers import muon

    muon._polynomials_for = lambda shape: polynomials


def whole_matrices() -> None:
    """Muon makes the matrices of attention orthogonal as a whole."""
    from clozebert.training.optimizers import optimizer

    optimizer.heads_of_matrices = lambda model: {}


def blocks_of_neurons() -> None:
    """Muon cuts the matrices of the feed-forward, too: into blocks of twice a head's size, along the neurons."""
    from clozebert.modeling.blocks import FeedForward
    from clozebert.training.optimizers import optimizer

    plain = optimizer.heads_of_matrices

    def replacement(model: Any) -> dict[Any, Any]:
        found = plain(model)
        size = 2 * min(size for _, size in found.values())
        for module in model.modules():
            if isinstance(module, FeedForward):
                found |= {module.gate_proj.weight: (0, size), module.up_proj.weight: (0, size)}
                found[module.down_proj.weight] = (1, size)
        return found

    optimizer.heads_of_matrices = replacement


def scale_rows() -> None:
    """NorMuon (Li et al. 2025): rows of the orthogonal matrix by a running mean of their squares; its norm is kept."""
    import torch

    from clozebert.training.optimizers.muon import Muon

    plain, seen = Muon._orthogonalize, {}

    def replacement(self: Any, updates: list[Any], parameters: list[Any], heads: list[Any]) -> list[Any]:
        found = []
        for matrix, parameter in zip(plain(self, updates, parameters, heads), parameters, strict=True):
            matrix = matrix.float()
            squares = matrix.square().mean(dim=1, keepdim=True)
            mean = seen.setdefault(parameter, torch.zeros_like(squares))
            mean.lerp_(squares, 1 - 0.95)
            scaled = matrix / (mean.sqrt() + 1e-8)
            found.append(scaled * (matrix.norm() / scaled.norm()))
        return found

    Muon._orthogonalize = replacement


def decay_with_update() -> None:
    """Cautious decay: a weight decays only where the update shrinks it too."""
    import torch

    from clozebert.training.optimizers.muon import Muon

    plain = Muon.step

    def replacement(self: Any, closure: Any = None) -> Any:
        (groups, decays) = self.param_groups, [group["weight_decay"] for group in self.param_groups]
        before = [[parameter.detach().clone() for parameter in group["params"]] for group in groups]
        for group in groups:
            group["weight_decay"] = 0.0
        plain(self, closure)
        for group, decay, olds in zip(groups, decays, before, strict=True):
            group["weight_decay"] = decay
            for old, parameter in zip(olds, group["params"], strict=True):
                shrinks = (old - parameter.detach()) * old > 0
                parameter.data.sub_(torch.where(shrinks, old * (group["lr"] * decay), 0.0))

    Muon.step = replacement


def average_weights() -> None:
    """The model that is saved has an exponential mean of the weights: of about the last twentieth of the run."""
    from clozebert.training import loop
    from clozebert.training.checkpoints import saving

    means: dict[str, Any] = {}
    update, save = loop.update_weights, saving.OutputFolder.save_model
    model_of: list[Any] = []
    set_up = loop.Pretraining._set_up

    def setting_up(self: Any, *given: Any) -> None:
        set_up(self, *given)
        model_of[:] = [self.setup.core, self.run.last_step]

    def updating(*given: Any, **named: Any) -> None:
        update(*given, **named)
        model, steps = model_of
        for name, parameter in model.named_parameters():
            mean = means.setdefault(name, parameter.detach().clone())
            mean.lerp_(parameter.detach(), 1 / (0.05 * steps))

    def saving_mean(self: Any, model: Any, *given: Any, **named: Any) -> None:
        for name, parameter in model.named_parameters():
            parameter.data.copy_(means[name])
        save(self, model, *given, **named)

    loop.Pretraining._set_up, loop.update_weights = setting_up, updating
    saving.OutputFolder.save_model = saving_mean


def as_before() -> None:
    """Muon as the recipes had it until 2026-11-25: on whole matrices, with four polynomials for all sizes."""
    whole_matrices()
    four_polynomials()


def four_polynomials() -> None:
    from clozebert.training.optimizers.muon import POLYNOMIALS

    use_polynomials(POLYNOMIALS)


def four_polynomials_and_blocks() -> None:
    four_polynomials()
    blocks_of_neurons()


def cap_logits() -> None:
    """Logits become 30 tanh(logits / 30) (Gemma 2), in training and in evaluation, over the whole vocabulary."""
    from clozebert.modeling.losses import cross_entropy
    from clozebert.modeling.masked_lm import ClozeBertForMaskedLM

    def predict(self: Any, x: Any, labels: Any, items: Any, *, loss_only: bool = False) -> tuple[Any, Any]:
        logits = 30 * (self.decoder(self.head(x)).float() / 30).tanh()
        loss = None if labels is None else cross_entropy(logits.flatten(0, -2), labels.flatten(), items)
        return loss, None if loss_only else logits

    def predict_among(self: Any, x: Any, labels: Any, items: Any, *sample: Any) -> Any:
        return self.predict(x, labels, items)[0]

    ClozeBertForMaskedLM.predict, ClozeBertForMaskedLM.predict_among = predict, predict_among


def add_value_embeddings() -> None:
    """The first and the last layer add an embedding of each token to its values (modded-nanogpt)."""
    from torch import nn
    from torch.nn import functional as F

    from clozebert.modeling.attention import Attention
    from clozebert.modeling.embeddings import TextEmbeddings

    plain, embed = Attention.__init__, TextEmbeddings.forward
    ids_now: list[Any] = []

    def replacement(self: Any, config: Any, layer_idx: int) -> None:
        plain(self, config, layer_idx)
        if layer_idx in (0, config.num_hidden_layers - 1):
            self.value_embeddings = nn.Embedding(config.vocab_size, self.v_proj.out_features)
            self.v_proj.register_forward_hook(lambda module, given, values: values + embedded(self, values))

    def embedded(attention: Any, values: Any) -> Any:
        ids = F.pad(ids_now[0].flatten(), (0, values.shape[:-1].numel() - ids_now[0].numel()))  # as the row is padded
        return attention.value_embeddings(ids).view_as(values).to(values.dtype)

    def embedding(self: Any, input_ids: Any, **given: Any) -> Any:
        ids_now[:] = [input_ids]
        return embed(self, input_ids, **given)

    Attention.__init__, TextEmbeddings.forward = replacement, embedding


def gate_heads() -> None:
    """The output of each head is multiplied by 2 sigmoid(w . x), x what the layer reads (Qiu et al. 2025)."""
    import torch

    from clozebert.modeling.attention import Attention

    plain = Attention.__init__

    def replacement(self: Any, config: Any, layer_idx: int) -> None:
        plain(self, config, layer_idx)
        self.gates = torch.nn.Parameter(torch.zeros(config.num_attention_heads, config.hidden_size))
        read: list[Any] = []
        self.q_proj.register_forward_hook(lambda module, given, out: read.__setitem__(slice(None), given))

        def gate(module: Any, given: Any) -> Any:
            gates = 2 * torch.sigmoid(torch.nn.functional.linear(read[0], self.gates))
            return (given[0].unflatten(-1, (len(self.gates), -1)) * gates.unsqueeze(-1)).flatten(-2)

        self.o_proj.register_forward_pre_hook(gate)

    Attention.__init__ = replacement


def mix_with_embeddings() -> None:
    """A layer reads a x + b e: x what the layer before it gave, e the embeddings, a and b learned, 1 and 0 at first."""
    import torch

    from clozebert.modeling.blocks import EncoderLayer

    plain, forward = EncoderLayer.__init__, EncoderLayer.forward
    first: list[Any] = []

    def replacement(self: Any, config: Any, layer_idx: int) -> None:
        plain(self, config, layer_idx)
        self.mix = torch.nn.Parameter(torch.tensor([1.0, 0.0]))
        self.is_first = layer_idx == 0

    def mixed(self: Any, hidden_states: Any, **given: Any) -> Any:
        if self.is_first:
            first[:] = [hidden_states]
        hidden_states = self.mix[0] * hidden_states + self.mix[1] * first[0]
        return forward(self, hidden_states, **given)

    EncoderLayer.__init__, EncoderLayer.forward = replacement, mixed


def read_by_document() -> None:
    """An epoch reads document after document, in random order, the rows of each in the order of its text."""
    import functools

    import numpy as np

    from clozebert.corpus import batches
    from clozebert.corpus.randomness import fold

    plain, begin = batches.permute, batches.BatchStream.__init__
    rows: list[Any] = []

    def beginning(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        index = self.indices[0]
        rows[:] = [index.segments[np.concatenate([[0], index.ends[:-1]])]]  # the first and longest segment of each row

    @functools.lru_cache(maxsize=2)
    def order(key: int) -> Any:
        documents, places = rows[0].astype(np.int64).T
        return np.lexsort((places, documents, fold(key, documents)))

    def replacement(index: Any, *, size: int, key: int) -> Any:
        return order(key)[index] if rows and size == len(rows[0]) else plain(index, size=size, key=key)

    batches.permute, batches.BatchStream.__init__ = replacement, beginning


def causal_first() -> None:
    """Half of the steps predict the next token, of all tokens, and see only what is before it (Gisserot-Boukhlef 2025).

    The other half are masked. The weights are the same ones.
    """
    import torch
    from torch.nn import functional as F

    from clozebert.modeling import packed_attention
    from clozebert.modeling.masked_lm import ClozeBertForMaskedLM
    from clozebert.training import loop

    set_up, update, plan = loop.Pretraining._set_up, loop.update_weights, packed_attention._plan_packed
    forward = ClozeBertForMaskedLM.forward
    steps = {"done": 0, "causal": 0}
    now = {"causal": False}

    def setting_up(self: Any, *given: Any) -> None:
        set_up(self, *given)
        steps["causal"] = self.run.last_step // 2

    def updating(*given: Any, **named: Any) -> None:
        update(*given, **named)
        steps["done"] += 1

    def planning(packed: Any, config: Any, layer_type: str, *given: Any, **named: Any) -> Any:
        if not now["causal"]:
            return plan(packed, config, layer_type, *given, **named)
        window = config.sliding_window if layer_type == "sliding_attention" else None
        return packed_attention.PackedPlan(packed, window, "padded")

    def attending(*given: Any, attn_mask: Any, **named: Any) -> Any:
        if now["causal"]:
            attn_mask = attn_mask & torch.ones(given[0].shape[-2], given[0].shape[-2], dtype=torch.bool).tril()
        return F.scaled_dot_product_attention(*given, attn_mask=attn_mask, **named)

    def replacement(self: Any, input_ids: Any = None, **given: Any) -> Any:
        now["causal"] = self.training and steps["done"] < steps["causal"]
        if now["causal"]:
            ids, labels = input_ids.flatten().clone(), given["labels"]
            is_label = labels != -100
            ids[given["masked_positions"][is_label]] = labels[is_label]  # as the text has them
            positions = (given["packed"].position_ids.flatten()[1:] > 0).nonzero().squeeze(1)
            given |= {
                "masked_positions": positions,
                "labels": ids[positions + 1],
                "num_items_in_batch": given["num_items_in_batch"] * len(positions) / is_label.sum(),
            }
            input_ids = ids.view_as(input_ids)
        return forward(self, input_ids, **given)

    loop.Pretraining._set_up, loop.update_weights = setting_up, updating
    packed_attention._plan_packed = planning
    packed_attention.F = types.SimpleNamespace(scaled_dot_product_attention=attending)
    ClozeBertForMaskedLM.forward = replacement
