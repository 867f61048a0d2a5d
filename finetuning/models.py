"""Loads an encoder with a new head, and saves it; freezes layers, adds LoRA, tells how deep each parameter is."""

import copy
import importlib.util
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn

from ..utils.answers import answer_by_name
from ..utils.device import find_device
from ..utils.errors import MissingPackageError, UserError, first_line
from ..utils.files import OLD_SPECIAL_TOKENS, WEIGHTS, whole_files
from ..utils.hub_names import is_hub_name
from ..utils.input_length import longest_input
from ..utils.tokenizer_files import VOCABULARY_FILES, save_tokenizer
from ..utils.untrusted import about_adapter, check_model_folder
from .tasks import Task, class_names

DEFAULT_DROPOUT = 0.1
# The names of dropout settings in the configurations of encoders.
DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "classifier_dropout_prob", "dropout",
    "attention_dropout", "seq_classif_dropout", "mlp_dropout", "hidden_dropout", "embedding_dropout",
)  # fmt: skip
_PRE_NORM = ("modernbert", "roberta-prelayernorm", "esm", "xlm-roberta-xl", "eurobert")  # encoders of transformers
LONGEST_BY_DEFAULT = 512  # longer input rarely helps; --max_seq_length overrides


def load_auto_tokenizer(name_or_path: str, config: Any, *, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer of a model with AutoTokenizer. It gives no token types if the model knows only one.

    Raises:
        ValueError: the model has no tokenizer that can be loaded.
    """
    tokenizer = _load_auto(transformers.AutoTokenizer, name_or_path, trust_remote_code, about="no tokenizer: ")
    folder = Path(name_or_path)
    if folder.is_dir() and not any((folder / name).exists() for name in VOCABULARY_FILES) and _is_empty(tokenizer):
        raise UserError(
            f"--model_name_or_path {name_or_path}: it holds no tokenizer; save the model's there, by "
            f"tokenizer.save_pretrained({name_or_path!r})"
        )
    if getattr(config, "type_vocab_size", None) == 1:  # a RoBERTa may have a tokenizer like BERT's
        tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    return tokenizer


def _is_empty(tokenizer: Any) -> bool:
    """Whether a tokenizer knows special tokens only. transformers makes one where a folder has none."""
    return tokenizer.get_vocab().keys() <= {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}


def load_config(name_or_path: str, *, trust_remote_code: bool = False) -> Any:
    """Load the configuration of a model.

    Raises:
        ValueError: it cannot be loaded.
    """
    folder = Path(name_or_path)
    if folder.is_dir() and not (folder / "config.json").is_file():
        models = sorted(str(path.parent) for path in folder.glob("*/config.json"))
        example = f"give a folder of a model, such as {models[0]}" if models else "give the folder of a whole model"
        hint = about_adapter(folder) or f"; {example}"
        raise UserError(f"--model_name_or_path {name_or_path}: it holds no config.json{hint}")
    return _load_auto(transformers.AutoConfig, name_or_path, trust_remote_code)


def _load_auto(auto_class: Any, name_or_path: str, trust_remote_code: bool, *, about: str = "") -> Any:
    if not os.path.isdir(name_or_path) and (os.path.exists(name_or_path) or not is_hub_name(name_or_path)):
        raise UserError(f"--model_name_or_path {name_or_path}: there is no such folder")
    check_model_folder(name_or_path)
    try:
        return auto_class.from_pretrained(name_or_path, trust_remote_code=trust_remote_code)
    except Exception as error:  # a library may raise anything for files that others made
        raise UserError(f"--model_name_or_path {name_or_path}: {about}{first_line(error)}") from error


def known_label_names(config: Any, task: type[Task]) -> list[str] | None:
    """The label names of a model with a head for this type of task; None for other models.

    An encoder's configuration has names too, LABEL_0 and LABEL_1, but it has no head to keep.
    """
    return class_names(config) if task.has_head(config) else None


def _answers_alike(config: Any, task: Task) -> bool:
    """Whether a model's head, if it has one for this type of task, has the outputs of this task."""
    known = known_label_names(config, type(task))
    if task.problem_type == "regression":  # a single output, whatever its name
        return known is not None and len(known) == 1 and config.problem_type in (None, "regression")
    return known == task.label_names


def load_classifier(
    name_or_path: str,
    *,
    task: Task,
    dropout: float | None = None,
    separator: int | None = None,
    compare_pairs: bool | None = None,
    trust_remote_code: bool = False,
    use_cpu: bool = False,
) -> nn.Module:
    """Load the encoder with a head for the task's labels, in float32. A head for other labels is reinitialised.

    Args:
        dropout: for training only: `model.dropout_before` keeps the configuration's own values, and `model.drops_head`
            tells whether the checkpoint has a head that was reinitialised.
        separator: the id of the token between the two texts of a pair; None: there are no pairs to compare.
        compare_pairs: whether the head compares them; None: a new head of a ClozeBERT does.
        use_cpu: the model will be trained on the CPU even if there is a GPU.

    Raises:
        ValueError: the checkpoint cannot be loaded, has no such head, or lacks weights of the encoder itself.
    """
    config = load_config(name_or_path, trust_remote_code=trust_remote_code)
    same_labels = _answers_alike(config, task)
    config = copy.deepcopy(config)
    if config.model_type == "clozebert":
        # A new head compares pairs by default; one that is trained further stays as it is.
        by_default = config.compare_pairs if same_labels else True
        config.compare_pairs = separator is not None and (by_default if compare_pairs is None else compare_pairs)
        config.sep_token_id = separator if config.compare_pairs else config.sep_token_id
    elif compare_pairs:
        raise UserError(
            f"--compare_pairs true: only ClozeBERT models compare pairs, and this is {config.model_type}; convert it "
            "first with `clozebert convert --to clozebert`"
        )
    task.write_labels(config)
    kernel_has_no_dropout = config.model_type == "clozebert" and find_device(use_cpu=use_cpu).type == "cuda"
    dropout_before = set_dropout(config, dropout, in_attention=not kernel_has_no_dropout)
    model, missing = _load_with_head(
        name_or_path,
        type(task),
        config=config,
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        trust_remote_code=trust_remote_code,
    )
    _refuse_random_encoder(model, missing, name_or_path)
    keeps_head = same_labels and (task.problem_type != "regression" or _answers_in_range(model, task))
    model.drops_head = task.has_head(config) and not keeps_head
    if not keeps_head:
        _initialise_output_layer(model, task)
    if task.problem_type == "regression":
        _answer_in_float32(model)
    model.dropout_before = dropout_before
    return model


def compares_pairs(model: Any) -> bool:
    """Whether a model's head compares the two texts of a pair."""
    return getattr(model.config, "compare_pairs", False)


def reading_of_pairs(model: Any) -> str:
    """What a classifier makes of the two texts of a pair, and what other way there is."""
    if compares_pairs(model):
        return "compares the two texts; it has no native form, --compare_pairs false has one"
    if model.config.model_type == "clozebert":
        return "reads the first token; small ClozeBERTs learn more with --compare_pairs true"
    return "reads the first token; small encoders learn more if `clozebert convert --to clozebert` converts them first"


def load_fine_tuned(
    name_or_path: str, tasks: Iterable[type[Task]], *, settings: Mapping[str, Any], trust_remote_code: bool = False
) -> tuple[Any, Task]:
    """Load a model that was fine-tuned for one of these types of task, in float32, and its task.

    `settings` are those that its run saved; empty if there are none.

    Raises:
        ValueError: it cannot be loaded, has no such head, or lacks weights.
    """
    config = load_config(name_or_path, trust_remote_code=trust_remote_code)
    task = next((task for task in tasks if task.has_head(config)), None)
    if task is None:
        kind = ", ".join(getattr(config, "architectures", None) or ["a model without a head"])
        raise UserError(
            f"--model_name_or_path {name_or_path}: it is {kind}, which gives no labels; fine-tune it first, with "
            "finetune-sequence or finetune-token"
        )
    if repeated := [name for name, times in Counter(config.id2label.values()).items() if times > 1]:
        raise UserError(
            f"--model_name_or_path {name_or_path}: two of its classes are named {repeated[0]!r}; rename one in the "
            "id2label of config.json"
        )
    model, missing = _load_with_head(name_or_path, task, dtype=torch.float32, trust_remote_code=trust_remote_code)
    if missing:
        raise UserError(f"--model_name_or_path {name_or_path}: weights are missing: {sorted(missing)}")
    return model, task.of_config(model.config, settings)


def _load_with_head(name_or_path: str, task: type[Task], **kwargs: Any) -> tuple[Any, Collection[str]]:
    """A model with the head of a task, and the names of weights that the checkpoint lacks."""
    auto_class = getattr(transformers, f"AutoModel{task.head}")
    try:
        model, loading = auto_class.from_pretrained(
            name_or_path, output_loading_info=True, use_safetensors=True, **kwargs
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise UserError(f"--model_name_or_path {name_or_path}: {first_line(error)}") from error
    answer_by_name(model.config)
    return model, loading["missing_keys"]


def set_dropout(config: Any, dropout: float | None, *, in_attention: bool = True) -> dict[str, Any]:
    """Set the dropout of a configuration, and return its previous values.

    None keeps the encoder's own dropout. An encoder that was pretrained without dropout gets `DEFAULT_DROPOUT`:
    pretraining sees its text once, fine-tuning sees a few examples many times. If `in_attention` is False, None also
    turns attention dropout off.
    """
    before = {name: getattr(config, name) for name in DROPOUTS if hasattr(config, name)}
    if dropout is not None:
        config.update(dict.fromkeys(before, dropout))
    elif not any(before.values()):
        # Not inside the feed-forward if its output has dropout: that takes as many random numbers as all the rest.
        skipped = {"mlp_dropout"} if "hidden_dropout_prob" in before else set()
        config.update({name: DEFAULT_DROPOUT for name in before if name not in skipped})
    if dropout is None and not in_attention and "attention_probs_dropout_prob" in before:
        config.update({"attention_probs_dropout_prob": 0.0})
    return before


def has_post_norm(config: Any) -> bool:
    """Whether the encoder's norms are behind its blocks, as BERT's are. An unknown architecture counts as one."""
    position = getattr(config, "norm_position", None)
    return position == "post" if position is not None else config.model_type not in _PRE_NORM


def _initialise_output_layer(model: Any, task: Task) -> None:
    """Initialise the output layer at random: the checkpoint has no weights for it, or those of other labels.

    For regression, the bias starts at the mean of the values, and the weights are scaled by their standard deviation.
    With this layer's learning rate and gradient scaled by the deviation too (see `parameter_groups` and
    `scale_output_gradient`), training proceeds as on standardised values, and the saved model predicts in the unit of
    the data.

    The model's own `_init_weights` cannot be used: it leaves loaded weights as they are.
    """
    output = output_layer(model)
    if output is None:
        return
    with torch.no_grad():
        output.weight.normal_(std=getattr(model.config, "initializer_range", 0.02))
        if output.bias is not None:
            output.weight.mul_(task.target_scale)
            output.bias.fill_(task.target_mean)


class _Float32Linear(nn.Linear):
    """A linear layer that computes in float32, under autocast too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.linear(x.float(), self.weight, self.bias)


def _answer_in_float32(model: nn.Module) -> None:
    """Have the output layer compute in float32.

    The values of a regression may be large and lie close together, such as years. In bf16, those near 2,000 would be
    multiples of 8.
    """
    output = output_layer(model)
    if type(output) is nn.Linear:
        output.__class__ = _Float32Linear


def _answers_in_range(model: Any, task: Task) -> bool:
    """Whether a trained regression predicts values near those of this task, judged by its bias.

    From far away it could not get there: the steps of the output layer are of the size of the task's values.
    """
    output = output_layer(model)
    if output is None or output.bias is None:
        return True
    return abs(output.bias.item() - task.target_mean) <= 3 * task.target_scale


def _refuse_random_encoder(model: Any, missing: Collection[str], name_or_path: str) -> None:
    """Raise if a checkpoint lacks weights of the encoder; only the head may be new."""
    prefix = model.base_model_prefix + "."
    random = sorted(name for name in missing if name.startswith(prefix) and "pool" not in name)
    if random:
        raise UserError(
            f"--model_name_or_path {name_or_path}: the checkpoint lacks {len(random)} weights of the encoder "
            f"({random[0]} …), which would be random; is it a checkpoint of a {model.config.model_type} model?"
        )


def output_layer(model: nn.Module) -> nn.Linear | None:
    """The last linear layer, which gives the logits: `classifier` of BERT, `classifier.out_proj` of RoBERTa …"""
    labels = model.config.num_labels  # type: ignore[union-attr]
    whole = _without_peft(model)
    base = whole.base_model
    of_encoder = set() if base is whole else set(base.modules())
    linears = [
        module
        for module in whole.modules()
        if isinstance(module, nn.Linear) and module.out_features == labels and module not in of_encoder
    ]
    return linears[-1] if linears else None


def prefer_plain_attention(model: Any) -> None:
    """Give transformers' own models eager attention: PyTorch's kernel is slow for bf16 on a CPU (docs/LOG.md).

    ClozeBERT models choose their kernels by themselves.
    """
    if model.config.model_type != "clozebert" and getattr(model.config, "_attn_implementation", None) == "sdpa":
        model.set_attn_implementation("eager")


def check_max_seq_length(wanted: int | None, model: nn.Module, tokenizer: Any) -> int:
    """The number of tokens in a window: `wanted`, else the model's maximum, but at most `LONGEST_BY_DEFAULT`.

    Raises:
        ValueError: the model takes fewer than `wanted`.
    """
    limit = longest_input(model, tokenizer)
    if wanted is None:
        return min(limit, LONGEST_BY_DEFAULT)
    if wanted > limit:
        raise UserError(
            f"--max_seq_length {wanted}: the model, or its tokenizer by model_max_length, takes at most {limit} tokens"
        )
    return wanted


def check_tokenizer_fits(model: Any, tokenizer: Any) -> None:
    """Raise a `ValueError` if the tokenizer has more tokens than the model has embeddings."""
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise UserError(f"the tokenizer has {len(tokenizer)} tokens, the model's vocabulary only {rows}")


def _without_peft(model: Any) -> Any:
    """A model of transformers, out of PEFT's wrapping; LoRA stays in it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def encoder_layers(model: nn.Module) -> list[list[nn.Module]]:
    """The modules of each of the encoder's layers.

    They are those of the longest module list of the base model, and of lists of the same length beside it: XLM has one
    list for each part of a layer. A list of lists (Funnel's blocks) counts as one; other lists within a list do not
    count.
    """
    lists: dict[str, list[nn.Module]] = {}
    for name, module in _without_peft(model).base_model.named_modules():
        if isinstance(module, nn.ModuleList) and not any(name.startswith(f"{outer}.") for outer in lists):
            lists[name] = _flattened(module)
    if not lists:
        raise UserError(f"{type(model).__name__} has no list of layers, which --freeze_layers and --layer_decay need")
    longest = max(lists, key=lambda name: len(lists[name]))
    parent = longest.rpartition(".")[0]
    beside = [
        found
        for name, found in lists.items()
        if name.rpartition(".")[0] == parent and len(found) == len(lists[longest])
    ]
    return [list(parts) for parts in zip(*beside, strict=True)]


def _flattened(modules: nn.ModuleList) -> list[nn.Module]:
    blocks = [module for module in modules if isinstance(module, nn.ModuleList)]
    return [layer for block in blocks for layer in block] if len(blocks) == len(modules) else list(modules)


def depth_of_parameters(model: nn.Module) -> dict[str, int]:
    """The depth of each parameter: 0 for the embeddings, 1 to n for the layers, n + 1 for the head.

    What else the encoder has is as deep as an embedding if it is one (relative positions) or comes before the first
    layer. Else it is as deep as the head: a pooler, or a norm behind the last layer.
    """
    layers = encoder_layers(model)
    base = _without_peft(model).base_model
    depth_of = {
        id(parameter): number
        for number, parts in enumerate(layers, start=1)
        for part in parts
        for parameter in part.parameters()
    }
    behind = False
    for name, parameter in base.named_parameters():
        behind |= id(parameter) in depth_of
        if not behind and "pool" not in name:
            depth_of[id(parameter)] = 0
    embeddings = [module for module in base.modules() if isinstance(module, nn.Embedding)]
    for module in [base.get_input_embeddings(), *embeddings]:
        for parameter in module.parameters():
            depth_of.setdefault(id(parameter), 0)
    return {name: depth_of.get(id(parameter), len(layers) + 1) for name, parameter in model.named_parameters()}


def freeze_layers(model: nn.Module, count: int) -> None:
    """Freeze the embeddings and the first `count` layers."""
    layers = len(encoder_layers(model))
    if not 0 <= count <= layers:
        raise UserError(f"--freeze_layers {count}: the model has {layers} layers")
    if count:
        depths = depth_of_parameters(model)
        for name, parameter in model.named_parameters():
            if depths[name] <= count:
                parameter.requires_grad_(False)


def check_peft() -> None:
    """Raise if the package for `--lora_rank` is missing."""
    if importlib.util.find_spec("peft") is None:
        raise MissingPackageError("--lora_rank needs peft: pip install peft")


def add_lora(model: Any, *, rank: int) -> Any:
    """Add LoRA to the encoder's linear layers (Hu et al. 2022).

    Only these updates, the whole head and a pooler are trained. A pooler may be new: pretraining has none.
    """
    check_peft()
    from peft import LoraConfig, get_peft_model

    of_layers = {module for parts in encoder_layers(model) for part in parts for module in part.modules()}
    targets = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module in of_layers]
    if not targets:
        raise UserError(f"--lora_rank {rank}: the layers of {type(model).__name__} have no linear layer to add to")
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, modules_to_save=_head_modules(model))
    return get_peft_model(model, config)


def _head_modules(model: Any) -> list[str]:
    """The names of the modules with weights outside the encoder, and of its pooler."""
    children = [(name, module) for name, module in model.named_children() if name != model.base_model_prefix]
    children += [(name, module) for name, module in model.base_model.named_children() if "pool" in name]
    return [name for name, module in children if next(module.parameters(), None) is not None]


def save_classifier(model: Any, tokenizer: Any, folder: str) -> None:
    """Save the model as an ordinary one (adapters merged), with its tokenizer."""
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    model.config.update(model.dropout_before)  # dropout was for training only
    with whole_files(Path(folder), replacing=[WEIGHTS, OLD_SPECIAL_TOKENS]) as new:
        model.save_pretrained(new)
        save_tokenizer(tokenizer, new)
