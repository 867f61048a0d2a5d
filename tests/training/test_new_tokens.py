"""New tokens: what a tokenizer makes of them, and what the rows of the model begin from."""

import math

import pytest
import torch
from growth_cases import make
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from clozebert.corpus.tokenizer import train_tokenizer
from clozebert.training import add_tokens
from clozebert.training.initialization.new_tokens import enlarge
from clozebert.utils.errors import UserError


@pytest.fixture
def tokenizer():
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters[:12], *(f"##{letter}" for letter in letters[:12])]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    core = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["bert", "untied", "modernbert"])
def test_new_tokens_are_means_of_their_parts(tokenizer, kind):
    model = make(kind, vocab_size=len(tokenizer))
    model.set_attn_implementation("eager")
    result = add_tokens(model, tokenizer, ["face", "bad"], texts=["face a bad cab", "bad face"])
    assert result.model.config.vocab_size == len(tokenizer) + 2 == len(result.tokenizer)
    assert len(tokenizer) == 29  # the old one is left as it is
    for token in ("face", "bad"):
        parts = tokenizer(token, add_special_tokens=False)["input_ids"]
        row = result.tokenizer.convert_tokens_to_ids(token)
        for name in ("model.embeddings.word_embeddings.weight", "decoder.weight", "decoder.bias"):
            old, new = model.state_dict()[name], result.model.state_dict()[name]
            assert torch.allclose(new[row], old[parts].mean(dim=0), atol=1e-6)
            assert torch.equal(new[: len(old)], old)
    assert result.tokenizer("face")["input_ids"] == [2, row - 1, 3]
    tied = result.model.decoder.weight is result.model.model.embeddings.word_embeddings.weight
    assert tied == result.model.config.tie_word_embeddings
    assert result.before > 1
    assert result.after > 1
    assert result.model.config._attn_implementation == "eager"
    # A word is not found inside other words.
    for text in ("badge", "abad", "facebad"):
        assert result.tokenizer(text)["input_ids"] == tokenizer(text)["input_ids"]


def masked_one_at_a_time(model, document):
    """-log p of each token in its place, by the formula; [CLS] and [SEP] stay."""
    losses = []
    for place in range(1, len(document) - 1):
        masked = torch.tensor([[4 if index == place else token for index, token in enumerate(document)]])
        losses.append(-float(model(input_ids=masked).logits[0, place].log_softmax(-1)[document[place]]))
    return losses


def test_both_models_are_measured_on_the_same_beginning_of_a_long_text(tokenizer, monkeypatch):
    model = make(vocab_size=len(tokenizer)).requires_grad_(False)
    text = "face a bad cab " * 20_000
    seen = []
    call = type(tokenizer).__call__
    monkeypatch.setattr(
        type(tokenizer), "__call__", lambda self, text, **more: (seen.append(len(text)), call(self, text, **more))[1]
    )
    result = add_tokens(model, tokenizer, ["face"], texts=[text])
    # 27 letters and the two ends are the model's 29 positions; to the larger tokenizer they are 20 tokens.
    read = "face a bad cab face a bad cab face a"
    assert len(read.replace(" ", "")) == 27
    old, new = tokenizer(read)["input_ids"], result.tokenizer(read)["input_ids"]
    assert (len(old), len(new)) == (29, 20)
    before, after = masked_one_at_a_time(model, old), masked_one_at_a_time(result.model.requires_grad_(False), new)
    assert result.before == pytest.approx(math.exp(sum(before) / 27), rel=1e-5)
    assert result.after == pytest.approx(math.exp(sum(after) / 27), rel=1e-5)
    assert max(seen) < 1000, "the rest of the text is not even tokenized"


def test_spare_rows_are_used_before_new_ones(tokenizer):
    model = make(vocab_size=40)
    result = add_tokens(model, tokenizer, ["face"], texts=["face"])
    assert result.model.config.vocab_size == 40


def test_vocabulary_mistakes(tokenizer):
    model = make(vocab_size=len(tokenizer))
    with pytest.raises(
        ValueError, match="'a' is in the tokenizer already; 'b' is in the tokenizer already; leave them out"
    ):
        add_tokens(model, tokenizer, ["a", "face", "b"], texts=["a"])
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    with pytest.raises(ValueError, match=r"'\\u200b' has no part that the tokenizer knows"):
        add_tokens(model, tokenizer, ["\u200b", "face"], texts=["a"])
    for given in ({"new_tokens": "face", "texts": ["a"]}, {"new_tokens": ["face"], "texts": "a"}):
        with pytest.raises(ValueError, match="is one text: give a list"):
            add_tokens(model, tokenizer, **given)


def test_a_word_of_strange_letters_begins_from_its_known_ones_or_from_all_entries(tokenizer):
    """WordPiece makes a word with one strange letter [UNK] as a whole."""
    model = make(vocab_size=len(tokenizer))
    found = add_tokens(model, tokenizer, ["aжb", "жд"], texts=["a"])
    old, new = (one.get_input_embeddings().weight for one in (model, found.model))
    a, b = tokenizer(["a", "b"], add_special_tokens=False)["input_ids"]
    mixed, strange = found.tokenizer.convert_tokens_to_ids(["aжb", "жд"])
    torch.testing.assert_close(new[mixed], old[[*a, *b]].mean(0))
    ordinary = sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids))
    torch.testing.assert_close(new[strange], old[ordinary].mean(0))


@pytest.mark.parametrize(("word", "entry"), [("The", "the"), ("face", "Ġface")])
def test_a_word_that_the_tokenizer_writes_otherwise_is_known_already(word, entry):
    model = make(vocab_size=300)
    texts = ["the face of the cat, the face"] * 20
    tokenizer = train_tokenizer(
        texts, algorithm="wordpiece" if entry == "the" else "bpe", vocab_size=290, lowercase=True
    )
    assert word not in tokenizer.get_vocab()
    with pytest.raises(ValueError, match=f"{word!r} is in the tokenizer already, as {entry!r}"):
        add_tokens(model, tokenizer, [word], texts=texts)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize("behind", [False, True], ids=["", "a token behind the vocabulary"])
def test_a_new_word_of_bpe_and_unigram_holds_its_space(algorithm, behind):
    texts = ["the tide of the sea, the ride of a side", "any turn in a tunnel"] * 20
    tokenizer = train_tokenizer(texts, algorithm=algorithm, vocab_size=400)
    if behind:
        tokenizer.add_special_tokens({"mask_token": "<cloze>"})
    model = make(vocab_size=-(-len(tokenizer) // 64) * 64, mask_token_id=tokenizer.mask_token_id)
    words = ["strident", "estuary", "IL-6", "New York"]
    result = add_tokens(model, tokenizer, words, texts=["the estuary of the sea", "a strident tide"])
    new, old = result.tokenizer, tokenizer
    assert new.mask_token_id == result.model.config.mask_token_id
    assert new("<cloze>")["input_ids"] == [2, new.mask_token_id, 3] or not behind
    weight, before = (m.get_input_embeddings().weight for m in (result.model, model))
    assert torch.equal(weight[new.mask_token_id], before[old.mask_token_id])

    def ids(cut, text):
        return cut(text, add_special_tokens=False)["input_ids"]

    for word in words[:2]:
        (row,) = ids(new, f" {word}")
        torch.testing.assert_close(weight[row], before[ids(old, f" {word}")].mean(dim=0), rtol=0, atol=1e-6)
    # What the pre-tokenizer splits at spaces and signs is added beside the vocabulary.
    for word in words[2:]:
        assert new.convert_tokens_to_ids(word) in ids(new, f"of {word} or")
    text = "the strident estuary of New York, IL-6"
    assert new.decode(ids(new, text)) == text
    for same in [*texts[:1], "stride", "est uary", "a ring: 12 <cloze>"]:
        assert new.convert_ids_to_tokens(ids(new, same)) == old.convert_ids_to_tokens(ids(old, same))
    assert result.before > 1
    assert result.after > 1
    with pytest.raises(ValueError, match=r"'estuary' is in the tokenizer already, as '.estuary'"):
        add_tokens(result.model, new, ["estuary"], texts=texts)


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
def test_a_new_word_of_a_script_without_spaces_is_found_among_other_letters(algorithm):
    tokenizer = train_tokenizer(["他在北京大學和運動員們的委員會"] * 20, algorithm=algorithm, vocab_size=400)
    enlarged = enlarge(tokenizer, ["京大", "動員們"])
    assert (enlarged.entries, enlarged.beside) == ([], ["京大", "動員們"])
    text = "他在北京大學和動員們"
    assert {"京大", "動員們"} <= set(enlarged.tokenizer.tokenize(text))
    decoded = enlarged.tokenizer.decode(enlarged.tokenizer(text, add_special_tokens=False)["input_ids"])
    assert decoded.replace(" ", "") == text


def test_words_that_the_tokenizer_cannot_tell_apart_have_one_row():
    letters = "estuary il-6 ESTUARY"
    tokenizer = train_tokenizer([letters] * 20, algorithm="wordpiece", vocab_size=130, lowercase=True)
    words = ["Tuary", "tuary", "Il-6", "il-6"]
    enlarged = enlarge(tokenizer, words)
    assert enlarged.beside == ["Tuary", "Il-6"]
    assert enlarged.left_out == {
        "tuary": "is the same as 'Tuary' to the tokenizer", "il-6": "is the same as 'Il-6' to the tokenizer"
    }  # fmt: skip
    with pytest.raises(UserError, match="'tuary' is the same as 'Tuary' to the tokenizer; 'il-6' is the same"):
        add_tokens(make(vocab_size=192), tokenizer, words, texts=[letters])


def test_a_word_that_would_be_decoded_wrongly_is_left_out():
    """The decoder of bytes takes é beside the vocabulary for a byte. As an entry it is written in bytes."""
    tokenizer = train_tokenizer(["the syndrome of a naïve person"] * 20, algorithm="bpe", vocab_size=300)
    enlarged = enlarge(tokenizer, ["Barré", "Guillain-Barré"])
    assert enlarged.entries == ["Barré"]
    assert enlarged.left_out == {"Guillain-Barré": "would be decoded wrongly by this tokenizer"}
    assert (
        enlarged.tokenizer.decode(enlarged.tokenizer("the Barré")["input_ids"], skip_special_tokens=True) == "the Barré"
    )


def test_a_tokenizer_that_puts_a_space_before_every_text_gets_words_after_other_words():
    """As Llama's: its normalizer writes the spaces, and nothing else splits a text."""
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>", "<mask>", "<pad>"])
    core.train_from_iterator(["the tide of a kin", "sea in the estuary"] * 9, trainer)
    spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    core.normalizer, core.pre_tokenizer = normalizers.Sequence(spaces), None
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", mask_token="<mask>", pad_token="<pad>"
    )
    enlarged = enlarge(tokenizer, ["tides", "kin-of", "the"])
    assert "tides" in enlarged.entries
    for word in enlarged.entries:
        assert f"▁{word}" in enlarged.tokenizer.tokenize(f"a {word}")
    assert "the" in enlarged.left_out
    assert enlarged.tokenizer.tokenize("the tide of a kin") == tokenizer.tokenize("the tide of a kin")


def test_a_new_word_that_ends_in_a_mark_is_not_found_inside_others():
    word, longer = "मे", "मेरा"
    tokenizer = train_tokenizer([longer] * 20, algorithm="wordpiece", vocab_size=200)
    texts = [f"{word} {longer}"]
    result = add_tokens(make(vocab_size=256), tokenizer, [word], texts=texts)
    assert result.tokenizer.tokenize(texts[0]) == [word, *tokenizer.tokenize(longer)]


def test_a_word_that_is_an_entry_without_its_space_only_gets_one_with_it():
    tokenizer = train_tokenizer(["the ride of a side"] * 20, algorithm="bpe", vocab_size=300)
    assert "ide" in tokenizer.get_vocab()
    result = add_tokens(make(vocab_size=320), tokenizer, ["ide"], texts=["the ide"])
    assert result.tokenizer.tokenize("the ide") == ["the", "Ġide"]
