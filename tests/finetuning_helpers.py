"""Tiny tokenizers, random checkpoints and easy data for the tests of fine-tuning."""

import json
import random
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, PreTrainedTokenizerFast

TOKENIZER_KINDS = ("wordpiece", "bpe", "bpe_prefix_space", "unigram")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LINES = [
    "the quick brown fox jumps over the lazy dog and runs away from it",
    "Hello world, don't panic: the banking card arrives later today!",
    "a wonderful film, great acting and a happy end",
    "a terrible film, boring acting and a sad end",
    "Ada Lovelace met Charles Babbage in London before she wrote to Paris",
    "numbers 0 1 2 3 4 5 6 7 8 9 and letters a b c d e f g h i j k l m n o p q r s t u v w x y z",
]  # fmt: skip


def make_tokenizer(kind: str, *, vocab_size: int = 500, token_types: bool = False, max_length: int = 64) -> Any:
    """A fast tokenizer of one kind, trained on a few lines."""
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False)
    elif kind in ("bpe", "bpe_prefix_space"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "bpe_prefix_space")
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=min(vocab_size, 150), special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False
        )
    tokenizer.train_from_iterator(LINES * 3, trainer)
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if token_types else ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        model_input_names=inputs,
        **{f"{name}_token": token for name, token in names.items()},
    )


def make_config(model_type: str, vocab_size: int, **overrides: Any) -> Any:
    """A tiny configuration; every size differs from every other."""
    if model_type == "clozebert":
        import clozebert

        sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
        return clozebert.ClozeBertConfig(
            **{"vocab_size": vocab_size, "max_position_embeddings": 64, "pad_token_id": 0, **sizes, **overrides}
        )
    if model_type == "distilbert":
        sizes = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40, "dropout": 0.0, "attention_dropout": 0.0}
        return AutoConfig.for_model(model_type, vocab_size=vocab_size, max_position_embeddings=64, **sizes, **overrides)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    positions = 66 if model_type == "roberta" else 64
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    values = {"vocab_size": vocab_size, "max_position_embeddings": positions, "pad_token_id": 0, **sizes, **dropout}
    return AutoConfig.for_model(model_type, **{**values, **overrides})


def make_checkpoint(folder: Path, *, model_type: str = "bert", tokenizer_kind: str = "wordpiece", **config: Any) -> str:
    """A folder with a random encoder (as masked-LM) and its tokenizer."""
    import torch
    from transformers import AutoModelForMaskedLM

    if model_type == "clozebert":
        import clozebert  # noqa: F401

    tokenizer = make_tokenizer(tokenizer_kind, token_types=model_type == "bert")
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(make_config(model_type, len(tokenizer), **config))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write_sentiment(path: Path, *, rows: int, seed: int = 0) -> str:
    """Texts that one word decides: `great` or `boring`."""
    generator = random.Random(seed)
    lines = ["text,label"]
    for _ in range(rows):
        label = generator.choice(["neg", "pos"])
        words = generator.choices(["film", "acting", "end", "dog", "card", "the"], k=generator.randint(2, 6))
        words.insert(generator.randint(0, len(words)), "great" if label == "pos" else "boring")
        lines.append(f"{' '.join(words)},{label}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def write_entities(path: Path, *, rows: int, seed: int = 0) -> str:
    """CoNLL columns with names of people and places."""
    generator = random.Random(seed)
    blocks = []
    for _ in range(rows):
        first, last = generator.choice([("Ada", "Lovelace"), ("Charles", "Babbage")])
        place = generator.choice(["London", "Paris"])
        sentence = [(first, "B-PER"), (last, "I-PER"), ("runs", "O"), ("to", "O"), (place, "B-LOC"), ("today", "O")]
        blocks.append("\n".join(f"{word}\t{tag}" for word, tag in sentence))
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return str(path)


def write_json_lines(path: Path, records: list[dict[str, Any]]) -> str:
    """One object a line."""
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return str(path)


def arguments_of(task: str, files: tuple[str, str], model: str, output: Path, **flags: Any) -> Any:
    """The flags of a short run; `files` are those to train and to validate on."""
    from clozebert.finetuning.arguments import SequenceArguments, TokenArguments

    arguments_class = TokenArguments if task == "token" else SequenceArguments
    values = {"num_train_epochs": 2.0, "learning_rate": 4e-3, "mixed_precision": "no", "dropout": 0.0, **flags}
    if "max_steps" in flags:
        del values["num_train_epochs"]
    return arguments_class(
        model_name_or_path=model,
        train_file=files[0],
        validation_file=files[1],
        output_dir=str(output),
        **values,
    )


def without_times(results: dict[str, Any]) -> dict[str, Any]:
    """What two runs of the same thing have in common."""
    return {key: value for key, value in results.items() if not key.endswith("runtime")}
