"""Warm starts: what must stay the same does, what is new is what the formula says, and both are measured."""

import math

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM, ClozeBertModel
from clozebert.corpus.tokenizer import train_tokenizer
from clozebert.hub import to_native
from clozebert.training import add_tokens, extend_positions, grow_depth, grow_width, pseudo_perplexity
from clozebert.training.initialization.growth import grow
from clozebert.training.initialization.new_tokens import enlarge
from clozebert.utils.errors import UserError

SMALL = {
    "vocab_size": 47,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 29,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "mask_token_id": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
WINDOWED = {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "sliding_window": 2}
DOCUMENTS = [[2, 10, 11, 12, 13, 3], [2, 30, 31, 5, 3], [2, 44, 3]]
KINDS = {
    "bert": ("bert-base", {}),
    "roberta": ("roberta-base", {"position_offset": 1}),
    "modernbert": ("modernbert-base", WINDOWED),
    "electra": ("bert-base", {"embedding_size": 10}),
    "untied": ("bert-base", {"tie_word_embeddings": False}),
    "rmsnorm": ("bert-base", {"norm_position": "pre", "norm_type": "rmsnorm", "qk_norm": True, "mlp_type": "glu",
                              "num_key_value_heads": 2, "position_embedding_type": "rope"}),
}  # fmt: skip


def make(kind="bert", **changes):
    name, more = KINDS[kind]
    torch.manual_seed(0)
    config = ClozeBertConfig.from_name(name, **{**SMALL, **more, "initializer_range": 0.2, **changes})
    model = ClozeBertForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def logits(model, length=9):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 47, (2, length), generator=generator)
    return model(input_ids=ids).logits


def test_pseudo_perplexity_is_the_formula():
    model, total, count = make().requires_grad_(False), 0.0, 0
    for document in DOCUMENTS:
        for position, token in enumerate(document):
            if token in (2, 3):
                continue
            masked = torch.tensor([[4 if index == position else t for index, t in enumerate(document)]])
            total -= float(model(input_ids=masked).logits[0, position].log_softmax(-1)[token])
            count += 1
    assert pseudo_perplexity(model, DOCUMENTS) == pytest.approx(math.exp(total / count), rel=1e-5)
    assert pseudo_perplexity(model, DOCUMENTS, tokens_per_batch=20) == pytest.approx(math.exp(total / count), rel=1e-5)


def test_pseudo_perplexity_needs_a_mask_token_and_text():
    with pytest.raises(ValueError, match="mask_token_id"):
        pseudo_perplexity(make(mask_token_id=None), DOCUMENTS)
    with pytest.raises(ValueError, match="no token that could be masked"):
        pseudo_perplexity(make(), [[2, 3]])
    with pytest.raises(ValueError, match="documents holds text: give token ids"):
        pseudo_perplexity(make(), ["a text"])


def test_documents_may_come_one_after_another():
    documents = [[2, 5, 6, 3], [2, 7, 3]]
    wanted = grow_depth(make(), num_hidden_layers=3, documents=documents)
    found = grow_depth(make(), num_hidden_layers=3, documents=(document for document in documents))
    assert (found.before, found.after) == (wanted.before, wanted.after)


def test_a_larger_model_keeps_the_attention_and_the_mode_and_trains_all_it_has(tokenizer):
    model = make(vocab_size=len(tokenizer)).train()
    model.set_attn_implementation("eager")
    model.model.requires_grad_(False)
    steps = grow(
        model, tokenizer, texts=["face"], new_tokens=["face"], hidden_size=36, num_attention_heads=6,
        num_hidden_layers=3, max_position_embeddings=40,
    )  # fmt: skip
    for _, found in steps:
        assert found.model.config._attn_implementation == "eager"
        assert found.model.training
        assert all(parameter.requires_grad for parameter in found.model.parameters())


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


def test_depth_repeats_layers_in_place():
    model = make("modernbert")
    result = grow_depth(model, 7, documents=DOCUMENTS)
    sources = [0, 0, 0, 1, 1, 2, 2]
    assert result.model.config.layer_types == [WINDOWED["layer_types"][source] for source in sources]
    old, new = model.state_dict(), result.model.state_dict()
    for layer, source in enumerate(sources):
        name = "model.layers.{}.attention.o_proj.weight"
        assert torch.equal(new[name.format(layer)], old[name.format(source)])
    # Layer 0 has no norm before its attention; its copies have layer 1's.
    name = "model.layers.{}.attention_norm.weight"
    assert name.format(0) not in new
    assert torch.equal(new[name.format(1)], old[name.format(1)])
    assert torch.equal(new["decoder.weight"], old["decoder.weight"])
    assert model.config.num_hidden_layers == 3
    assert type(to_native(result.model)).__name__ == "ModernBertForMaskedLM"


def test_depth_of_layers_that_write_nothing_changes_nothing():
    model = make("bert", norm_position="pre")
    with torch.no_grad():
        for layer in model.model.layers:
            for projection in (layer.attention.o_proj, layer.mlp.down_proj):
                projection.weight.zero_()
                projection.bias.zero_()
    result = grow_depth(model, 5, documents=DOCUMENTS)
    assert result.after == pytest.approx(result.before, rel=1e-5)
    assert torch.allclose(logits(model), logits(result.model), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("times", [2, 3])
def test_whole_multiples_compute_the_same(kind, times):
    model = make(kind)
    result = grow_width(
        model,
        hidden_size=24 * times,
        num_attention_heads=4 * times,
        intermediate_size=50,
        documents=DOCUMENTS,
        noise=0.0,
    )
    assert result.model.config.hidden_size == 24 * times
    assert torch.allclose(logits(model), logits(result.model), atol=2e-5)
    assert result.after == pytest.approx(result.before, rel=1e-4)


def test_embeddings_that_are_said_to_be_as_wide_as_the_layers_stay_so():
    model = make("bert", embedding_size=24)
    result = grow_width(model, hidden_size=48, num_attention_heads=8, documents=DOCUMENTS, noise=0.0)
    assert result.model.get_input_embeddings().weight.shape[1] == 48
    assert torch.allclose(logits(model), logits(result.model), atol=2e-5)


def test_feed_forward_alone_computes_the_same():
    model = make("modernbert")
    result = grow_width(model, intermediate_size=53, documents=DOCUMENTS, noise=0.0)
    assert torch.allclose(logits(model), logits(result.model), atol=1e-5)


@pytest.mark.parametrize("noise", [-1.0, float("nan"), float("inf")])
def test_noise_that_is_none_is_refused(noise):
    with pytest.raises(UserError, match=rf"noise={noise} must be at least 0 and finite"):
        grow_width(make("bert"), hidden_size=48, num_attention_heads=8, documents=DOCUMENTS, noise=noise)


def test_broken_multiples_are_close_and_noise_tells_copies_apart():
    model = make("bert")
    result = grow_width(model, hidden_size=30, num_attention_heads=5, documents=DOCUMENTS, noise=0.0)
    assert result.model.config.hidden_size == 30
    assert math.isfinite(result.after)
    noisy = grow_width(model, hidden_size=48, num_attention_heads=8, documents=DOCUMENTS)
    weight = noisy.model.model.layers[1].mlp.up_proj.weight
    assert not torch.equal(weight[:, :24], weight[:, 24:])
    assert noisy.after == pytest.approx(noisy.before, rel=0.1)
    again = grow_width(model, hidden_size=48, num_attention_heads=8, documents=DOCUMENTS)
    assert torch.equal(again.model.model.layers[1].mlp.up_proj.weight, weight)


@pytest.mark.parametrize(
    ("kind", "changes", "sizes", "message"),
    [
        ("bert", {}, {"hidden_size": 12, "num_attention_heads": 2}, "hidden_size=12 is less than the model's 24"),
        ("bert", {}, {"hidden_size": 48}, "hidden_size=48 and num_attention_heads=4 .* num_attention_heads=8"),
        (
            "bert",
            {"position_embedding_type": "sinusoidal"},
            {"hidden_size": 48, "num_attention_heads": 8},
            "sinusoidal",
        ),
        ("bert", {"embedding_size": 48}, {"hidden_size": 48, "num_attention_heads": 8}, "the model's embedding_size"),
        ("rmsnorm", {}, {"hidden_size": 36, "num_attention_heads": 6}, "must be a multiple of the model's 4"),
    ],
)
def test_width_mistakes(kind, changes, sizes, message):
    with pytest.raises(ValueError, match=message):
        grow_width(make(kind, **changes), **sizes, documents=DOCUMENTS)


def test_learned_positions_are_interpolated():
    model = make("roberta")
    table = model.model.embeddings.positions.table.weight
    with torch.no_grad():  # rows that lie on a line stay on it
        table[1:] = torch.linspace(0, 28, 29)[:, None] * torch.linspace(-1, 1, 24)
    result = extend_positions(model, 57, documents=DOCUMENTS)
    new = result.model.model.embeddings.positions.table.weight
    assert new.shape == (58, 24)
    assert torch.equal(new[0], table[0])  # the row before the first position
    assert torch.allclose(new[1:], torch.linspace(0, 28, 57)[:, None] * torch.linspace(-1, 1, 24), atol=1e-5)
    assert torch.isfinite(logits(result.model, length=57)).all()


def test_rotary_base_is_stretched_where_attention_is_full():
    model = make("modernbert")
    result = extend_positions(model, 29 * 4, documents=DOCUMENTS)
    old, new = model.config.rope_parameters, result.model.config.rope_parameters
    size = 6  # of a head
    assert new["sliding_attention"] == old["sliding_attention"]
    theta = new["full_attention"]["rope_theta"]
    assert theta == pytest.approx(old["full_attention"]["rope_theta"] * 4 ** (size / (size - 2)))
    # The slowest pair turns at the new end by as much as it did at the old.
    slowest = (size - 2) / size
    assert 4 * theta**-slowest == pytest.approx(old["full_attention"]["rope_theta"] ** -slowest)
    assert extend_positions(model, 58, rope_theta=5e5, documents=DOCUMENTS).model.config.rope_parameters[
        "full_attention"
    ]["rope_theta"] == 5e5  # fmt: skip
    assert result.after > 1


def test_what_has_grown_keeps_the_mode_of_its_model():
    model = make("modernbert")
    for mode in (False, True):
        model.train(mode)
        grown = [
            grow_width(model, hidden_size=48, num_attention_heads=8, documents=DOCUMENTS),
            grow_depth(model, 5, documents=DOCUMENTS),
            extend_positions(model, 58, documents=DOCUMENTS),
        ]
        assert [result.model.training for result in grown] == [mode] * 3


def test_length_mistakes():
    windows = make("modernbert", layer_types=["sliding_attention"] * 3, num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"rope_theta=1\.0 is that of layers with full attention, and the model has"):
        extend_positions(windows, 58, rope_theta=1.0, documents=DOCUMENTS)
    with pytest.raises(ValueError, match="must exceed the model's 29"):
        extend_positions(make(), 29, documents=DOCUMENTS)
    with pytest.raises(ValueError, match=r"rope_theta=1\.0 needs rotary positions"):
        extend_positions(make(), 58, rope_theta=1.0, documents=DOCUMENTS)


def test_only_masked_lm_models():
    base = ClozeBertModel(make().config)
    with pytest.raises(ValueError, match="ClozeBertModel was given"):
        grow_depth(base, 5, documents=DOCUMENTS)


def test_fewer_layers_are_refused():
    with pytest.raises(ValueError, match="num_hidden_layers=2 is less than"):
        grow_depth(make(), 2, documents=DOCUMENTS)


def test_reported_in_words_and_trains_on(tmp_path):
    result = grow_width(make(), hidden_size=48, num_attention_heads=8, documents=DOCUMENTS)
    assert "before" in str(result)
    assert "after" in str(result)
    result.model(input_ids=torch.tensor(DOCUMENTS[:1]), labels=torch.tensor(DOCUMENTS[:1])).loss.backward()
    assert all(parameter.grad is not None for parameter in result.model.parameters())
    result.model.save_pretrained(tmp_path)
    assert torch.equal(logits(ClozeBertForMaskedLM.from_pretrained(tmp_path)), logits(result.model.eval()))


def test_a_model_with_the_code_of_its_folder_is_told_how_to_be_loaded():
    copied = type("ClozeBertForMaskedLM", (torch.nn.Module,), {})()
    with pytest.raises(UserError, match="import clozebert, and load it without trust_remote_code"):
        grow_depth(copied, 4, documents=[[2, 5, 3]])
    with pytest.raises(UserError, match="a ClozeBertModel was given: only a ClozeBertForMaskedLM can grow"):
        grow_depth(ClozeBertModel(ClozeBertConfig(vocab_size=8, hidden_size=8, num_attention_heads=2)), 4, documents=[])
