"""A native BERT's tokenizer is called BertTokenizerFast where that class cuts every text alike, and only there."""

import json

import pytest
from saved_models import make_model
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast, RobertaTokenizer

from clozebert.hub import save_native
from clozebert.hub.convert import convert_folder

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgé,.!東", "##a", "##b", "ab", "Ab"]
TEXTS = ["Ab ab, abab! é É", "a東b\u00a0c\tb", "[MASK] ba [SEP] x"]


def make_tokenizer(normalizer, **model):
    """WordPiece around a normalizer, in a class that any tokenizer may have."""
    vocabulary = {token: number for number, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", **model))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=41, model_input_names=inputs, **names)


def saved_class(directory, tokenizer, name="bert-base"):
    model = make_model(name=name, vocab_size=len(TOKENS))
    save_native(model, directory, tokenizer)
    return json.loads((directory / "tokenizer_config.json").read_text())


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False, None])
def test_exact_ones(lowercase, strip_accents, tmp_path):
    tokenizer = make_tokenizer(normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents))
    settings = saved_class(tmp_path, tokenizer)
    assert settings["tokenizer_class"] == "BertTokenizerFast"
    assert (settings["do_lower_case"], settings["strip_accents"]) == (lowercase, strip_accents)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(loaded, BertTokenizer)
    for text in TEXTS:
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert dict(loaded(*TEXTS[:2])) == dict(tokenizer(*TEXTS[:2]))
    # What was converted and brought back is still one.
    convert_folder(tmp_path, tmp_path / "ours", to="clozebert")
    convert_folder(tmp_path / "ours", tmp_path / "again", to="native")
    again = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert [again(text)["input_ids"] for text in TEXTS] == [tokenizer(text)["input_ids"] for text in TEXTS]


@pytest.mark.parametrize(
    ("normalizer", "model"),
    [
        (normalizers.Lowercase(), {}),
        (normalizers.BertNormalizer(clean_text=False), {}),
        (normalizers.BertNormalizer(), {"max_input_chars_per_word": 3}),
        (None, {}),
    ],
    ids=["another normalizer", "text is not cleaned", "shorter words", "none"],
)
def test_others_keep_the_general_class(normalizer, model, tmp_path):
    """A BertTokenizerFast would cut them otherwise: it takes nothing of these from the folder."""
    tokenizer = make_tokenizer(normalizer, **model)
    assert saved_class(tmp_path, tokenizer)["tokenizer_class"] == "PreTrainedTokenizerFast"
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert [loaded(text)["input_ids"] for text in TEXTS] == [tokenizer(text)["input_ids"] for text in TEXTS]


def test_other_architectures_keep_the_general_class(tmp_path):
    settings = saved_class(tmp_path, make_tokenizer(normalizers.BertNormalizer()), "modernbert-base")
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"


@pytest.mark.parametrize("spaced", [False, True])
def test_a_native_robertas_tokenizer_keeps_its_class_where_it_cuts_alike(spaced, tmp_path):
    """With the general class, `add_prefix_space=True` would have no effect."""
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    theirs = RobertaTokenizer({name: number for number, name in enumerate(names)}, [], add_prefix_space=spaced)
    specials = {f"{name}_token": getattr(theirs, f"{name}_token") for name in
                ("bos", "eos", "sep", "cls", "unk", "pad", "mask")}  # fmt: skip
    inputs = ["input_ids", "attention_mask"]
    for backend, expected in ((theirs.backend_tokenizer, "RobertaTokenizerFast"), (None, "PreTrainedTokenizerFast")):
        if backend is None:  # another end of sentences
            backend = Tokenizer.from_str(theirs.backend_tokenizer.to_str())
            backend.post_processor = processors.ByteLevel()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **specials)
        folder = tmp_path / expected
        model = make_model(name="roberta-base", vocab_size=len(names))
        save_native(model, folder, tokenizer)
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        assert settings["tokenizer_class"] == expected
        loaded = AutoTokenizer.from_pretrained(folder)
        assert [loaded(text)["input_ids"] for text in TEXTS] == [tokenizer(text)["input_ids"] for text in TEXTS]
    words = AutoTokenizer.from_pretrained(tmp_path / "RobertaTokenizerFast", add_prefix_space=True)
    assert words(["a", "b"], is_split_into_words=True)["input_ids"] == theirs(" a b")["input_ids"]
