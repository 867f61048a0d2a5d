"""ViT (Dosovitskiy et al. 2020): a pre-norm encoder of image patches."""

from typing import Any

from .architecture import COMMON_VALUES, Architecture, Values, heads_of, no_counterpart, same


def _square(name: str, size: Any) -> int:
    sides = [size] if isinstance(size, int) else list(size)
    if len(set(sides)) != 1:
        raise no_counterpart(name, size, "images and patches are square")
    return sides[0]


def _to_ours(native: Values, ending: str) -> Values:
    if not native["qkv_bias"]:
        raise no_counterpart("qkv_bias", False, "attention_bias is of all four projections or of none")
    if ending == "Model" and native["pooler_output_size"] not in (None, native["hidden_size"]):
        raise no_counterpart("pooler_output_size", native["pooler_output_size"], "a pooler's output has hidden_size")
    if ending == "ForImageClassification" and not native["id2label"]:
        raise no_counterpart("num_labels", 0, "use ViTModel where there is no classifier")
    return {
        "image_size": _square("image_size", native["image_size"]),
        "patch_size": _square("patch_size", native["patch_size"]),
        "classifier_dropout": 0.0 if native["hidden_dropout_prob"] else None,
        "classifier_activation": native["pooler_act"],
    }


def _to_native(ours: Values, ending: str) -> Values:
    return {
        "qkv_bias": True,
        "pooler_act": ours["classifier_activation"],
        "pooler_output_size": ours["hidden_size"],
        # A text model has no such sizes. ViT's defaults are used instead, and the fields are reported as different.
        **{name: ours[name] for name in ("image_size", "patch_size") if ours[name] is not None},
    }


VIT = Architecture(
    model_type="vit",
    config_class="ViTConfig",
    prefix="vit",
    heads=heads_of("ViT", ForImageClassification="classifier"),
    renames=(
        ("embeddings.class_token", "embeddings.cls_token"),
        ("embeddings.table", "embeddings.position_embeddings"),
        ("embeddings.projection", "embeddings.patch_embeddings.projection"),
        ("layers.{i}.attention_norm", "layers.{i}.layernorm_before"),
        ("layers.{i}.attention.q_proj", "layers.{i}.attention.q_proj"),
        ("layers.{i}.attention.k_proj", "layers.{i}.attention.k_proj"),
        ("layers.{i}.attention.v_proj", "layers.{i}.attention.v_proj"),
        ("layers.{i}.attention.o_proj", "layers.{i}.attention.o_proj"),
        ("layers.{i}.mlp_norm", "layers.{i}.layernorm_after"),
        ("layers.{i}.mlp.up_proj", "layers.{i}.mlp.fc1"),
        ("layers.{i}.mlp.down_proj", "layers.{i}.mlp.fc2"),
        ("final_norm", "layernorm"),
        ("pooler.dense", "pooler.dense"),
    ),
    fields={
        **same(
            "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
            "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "num_channels",
        ),
        "norm_eps": "layer_norm_eps",
    },
    fixed={
        **COMMON_VALUES,
        "norm_position": "pre",
        "embedding_norm": False,
        "classifier_dense": "none",
    },
    to_ours=_to_ours,
    to_native=_to_native,
    no_effect=("encoder_stride", "image_size", "patch_size", "pooler_output_size"),
    optional_pooler=True,
)  # fmt: skip
