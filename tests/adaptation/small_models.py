"""Two kinds of text, and small native models of several architectures whose tokenizers know the first kind only."""

import random
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from clozebert.adaptation.adapt import adapt
from clozebert.adaptation.arguments import AdaptationArguments
from clozebert.corpus.tokenizer import train_tokenizer
from clozebert.utils.tokenizer_files import save_tokenizer

_OLD = "the a cat dog house river walked looked slowly under over green old little garden window said nothing"
_NEW = "chlorine hydroxide catalysis benzene polymer oxidation electrolyte enthalpy isotope reagent"
OLD_WORDS, NEW_WORDS = _OLD.split(" "), _NEW.split(" ")
ALGORITHMS = {"bert": "wordpiece", "roberta": "bpe", "modernbert": "bpe"}
SIZES: dict[str, Any] = {
    "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 52,
}  # fmt: skip


def old_documents(count: int = 120) -> list[str]:
    """Documents of common words."""
    return _documents(OLD_WORDS, count, seed=0)


def new_documents(count: int = 120) -> list[str]:
    """Documents in which half of the words are ones that the first kind of text has not."""
    return _documents(OLD_WORDS[:8] + NEW_WORDS, count, seed=1)


def _documents(words: list[str], count: int, *, seed: int) -> list[str]:
    draws = random.Random(seed)
    return [" ".join(draws.choice(words) for _ in range(draws.randint(8, 40))) + "." for _ in range(count)]


def write_texts(folder: Path) -> Path:
    for name, documents in (("old", old_documents()), ("new", new_documents())):
        (folder / f"{name}.txt").write_text("\n\n".join(documents) + "\n")
    return folder


def make_tokenizer(algorithm: str, *, vocab_size: int = 340) -> PreTrainedTokenizerFast:
    """A tokenizer trained on the first kind of text, and on the letters of all."""
    letters = ["abcdefghijklmnopqrstuvwxyz", "a b c d e f g h i j k l m n o p q r s t u v w x y z"]
    sizes = {"wordpiece": 150, "unigram": 400}
    return train_tokenizer(
        old_documents() + letters, algorithm=algorithm, vocab_size=sizes.get(algorithm, vocab_size), model_max_length=64
    )


def save_native(
    folder: Path, model_type: str, tokenizer: PreTrainedTokenizerFast | None = None, **changes: Any
) -> Path:
    """A small native model with random weights, and its tokenizer."""
    tokenizer = tokenizer or make_tokenizer(ALGORITHMS[model_type])
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "cls", "sep")}
    if model_type == "modernbert":
        ids |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    else:
        ids = {"pad_token_id": tokenizer.pad_token_id}
    stem = {"bert": "Bert", "roberta": "Roberta", "modernbert": "ModernBert"}[model_type]
    # RoBERTa counts positions from behind the padding's id, which is 0 here.
    positions = {"max_position_embeddings": 65 if model_type == "roberta" else 64}
    config = getattr(transformers, f"{stem}Config")(
        vocab_size=len(tokenizer), **{**SIZES, **positions, **ids, **changes}
    )
    torch.manual_seed(0)
    getattr(transformers, f"{stem}ForMaskedLM")(config).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


def adapt_flags(model: Path, text: Path, output_dir: Path, **changes: Any) -> dict[str, Any]:
    """The arguments of an adaptation that takes a second."""
    holds_out = changes.get("replay_input") or not (changes.get("corpus") or changes.get("validation_input"))
    return {
        "model_name_or_path": str(model), "input": [str(text)], "output_dir": str(output_dir), "max_steps": 4,
        "global_batch_size": 4, "per_device_train_batch_size": 4, "max_seq_length": 48,
        "num_processes": 1, "mixed_precision": "no", "use_cpu": True, "disable_tqdm": True, "learning_rate": 3e-3,
        **({"validation_fraction": 0.1} if holds_out else {}),
        **changes,
    }  # fmt: skip


def run(*places: Path, **changes: Any) -> dict[str, Any]:
    """`adapt` with the flags of `adapt_flags`, without its lines."""
    return adapt(AdaptationArguments(**adapt_flags(*places, **changes)), say=lambda line: None)
