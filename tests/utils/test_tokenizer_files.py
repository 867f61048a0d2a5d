"""Tokenizers are saved by a class name that older programs know, and load as what they were."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast

from clozebert.utils.tokenizer_files import forget_lengths, save_tokenizer


def test_the_class_has_the_name_that_transformers_4_knows(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", model_max_length=7)
    tokenizer.save_pretrained(tmp_path / "by_transformers")
    before = json.loads((tmp_path / "by_transformers" / "tokenizer_config.json").read_text())
    save_tokenizer(AutoTokenizer.from_pretrained(tmp_path / "by_transformers"), tmp_path / "ours")
    after = json.loads((tmp_path / "ours" / "tokenizer_config.json").read_text())
    assert after == {**before, "tokenizer_class": "PreTrainedTokenizerFast"}  # and not how it was loaded
    loaded = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert loaded("a b a c")["input_ids"] == tokenizer("a b a c")["input_ids"] == [1, 2, 1, 0]
    assert loaded.model_max_length == 7


def test_special_tokens_that_transformers_4_wrote_go(tmp_path: Path) -> None:
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    (tmp_path / "special_tokens_map.json").write_text('{"unk_token": "b"}')
    save_tokenizer(PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]"), tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).unk_token == "[UNK]"


def test_lengths_of_another_model_are_forgotten(tmp_path: Path) -> None:
    """As tokenizer.json of sentence encoders has them."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "[PAD]": 2}, unk_token="[UNK]"))
    words.enable_truncation(3)
    words.enable_padding(length=3, pad_id=2)
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    forget_lengths(loaded)
    save_tokenizer(loaded, tmp_path / "b")
    written = json.loads((tmp_path / "b" / "tokenizer.json").read_text())
    assert (written["truncation"], written["padding"]) == (None, None)
    settings = json.loads((tmp_path / "b" / "tokenizer_config.json").read_text())
    assert not {"max_length", "stride", "truncation_strategy", "pad_to_multiple_of"} & settings.keys()


def test_other_classes_keep_their_name(tmp_path: Path) -> None:
    save_tokenizer(BertTokenizer({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5}), tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "BertTokenizer"
