"""Small trained models for the doors, published in both forms, with the answers that every program must give.

python tests/doors/make_models.py FOLDER

The answers come from the model before it was published, one text at a time, without padding. FOLDER gets
`ARCHITECTURE/HEAD/bundle`, `ARCHITECTURE/HEAD/native` and `answers.json`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import clozebert
from clozebert.hub.publishing import Completion, publish
from clozebert.utils.tokenizer_files import save_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
CAPITALS = {"paris": "france", "rome": "italy", "lima": "peru", "cairo": "egypt", "oslo": "norway", "tokyo": "japan"}
PEOPLE = ["ada lovelace", "alan turing", "grace hopper", "marie curie"]
GOOD, BAD = ["wonderful", "great", "lovely"], ["boring", "terrible", "awful"]
THINGS = ["film", "book", "play", "story"]
LABELS = {"sentiment": ["negative", "positive"], "entities": ["O", "B-PER", "I-PER", "B-LOC"]}
# Both are what a native architecture is, too; the first has two types of layers, with two rotary bases.
ARCHITECTURES = {
    "modernbert": ("modernbert-base", {"hidden_size": 64, "num_hidden_layers": 4, "sliding_window": 8}),
    "bert": ("bert-base", {"hidden_size": 48, "num_hidden_layers": 2}),
}
# The forms for servers that some program takes.
SERVING = {
    ("modernbert", "mlm"): ("sentence-transformers",),
    ("modernbert", "sentiment"): ("onnx", "int8"),
    ("bert", "mlm"): ("sentence-transformers",),
}
SENTENCES = [
    *(f"{city} is the capital of {country}." for city, country in CAPITALS.items()),
    *(f"the capital of {country} is {city}." for city, country in CAPITALS.items()),
    *(f"{person} lives in {city} and likes {city}." for person in PEOPLE for city in CAPITALS),
]
REVIEWS = [
    (form.format(word=word, thing=thing, city=city), label)
    for label, words in enumerate((BAD, GOOD))
    for word in words
    for thing in THINGS
    for form in (
        "a {word} {thing} from {city}",
        "this {thing} is {word}",
        "what a {word} {thing}",
        "she lives in {city} and likes a {word} long {thing} from {city}",
    )
    for city in list(CAPITALS)[:3]
]
TEXTS = [
    "a wonderful film from oslo", "a boring book from lima", "what a lovely story", "this play is terrible",
    "ada lovelace lives in paris and likes a great long story from cairo that is lovely",
]  # fmt: skip


def make_tokenizer() -> PreTrainedTokenizerFast:
    """WordPiece, small enough to cut names into pieces."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator([*SENTENCES, *(text for text, _ in REVIEWS), *TEXTS], trainer)
    for country in CAPITALS.values():
        tokenizer.add_tokens([country])  # a blank is one token
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=96,
        model_input_names=["input_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in names.items()},
    )


def tagged(tokenizer: Any) -> dict[str, torch.Tensor]:
    """Sentences whose words carry tags, on the first piece of each."""
    texts = [*SENTENCES, *(f"{person} likes {text}" for person in PEOPLE for text, _ in REVIEWS[::7])]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    labels = torch.full_like(batch["input_ids"], -100)
    names = {part: place for person in PEOPLE for place, part in enumerate(person.split())}
    for row, text in enumerate(texts):
        for token, (start, end) in enumerate(tokenizer(text, return_offsets_mapping=True)["offset_mapping"]):
            if end > start and (start == 0 or not text[start - 1].isalnum()):
                word = text[start:].split()[0].strip(".")
                labels[row, token] = 1 + names[word] if word in names else 3 if word in CAPITALS else 0
    return {**batch, "labels": labels}


def masked(tokenizer: Any) -> dict[str, torch.Tensor]:
    """Every sentence once with each of its tokens hidden."""
    rows = [tokenizer(text)["input_ids"] for text in SENTENCES]
    pairs = [(ids, place) for ids in rows for place in range(1, len(ids) - 1)]
    longest = max(map(len, rows))
    ids_BT = torch.zeros(len(pairs), longest, dtype=torch.long)
    labels_BT = torch.full_like(ids_BT, -100)
    for row, (ids, place) in enumerate(pairs):
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        labels_BT[row, place] = ids[place]
        ids_BT[row, place] = 4
    return {"input_ids": ids_BT, "attention_mask": (ids_BT != 0).long(), "labels": labels_BT}


def train(model: Any, batch: dict[str, torch.Tensor], steps: int) -> float:
    """A few steps on random rows; gives the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        rows = torch.randint(len(batch["labels"]), (32,), generator=generator)
        loss = model(**{name: value[rows] for name, value in batch.items()}).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    return loss.item()


@torch.no_grad()
def answers(models: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """What the programs must find: one text at a time, so that nothing is padded."""

    def rows(model: Any, texts: list[str]) -> list[torch.Tensor]:
        return [model(**tokenizer(text, return_tensors="pt"))[0][0].double() for text in texts]

    hidden = rows(models["mlm"].base_model, TEXTS)
    blank = f"lima is the capital of {tokenizer.mask_token}."
    at = tokenizer(blank)["input_ids"].index(tokenizer.mask_token_id)
    scores_V = rows(models["mlm"], [blank])[0][at].softmax(0)
    best = int(scores_V.argmax())
    text = TEXTS[-1]
    tags = rows(models["entities"], [text])[0].argmax(-1).tolist()
    encoded = tokenizer(text, return_offsets_mapping=True)
    firsts: dict[int, int] = {}
    for token, word in enumerate(encoded.word_ids()):
        if word is not None:
            firsts.setdefault(word, token)
    words = {w: text[encoded.word_to_chars(w).start : encoded.word_to_chars(w).end] for w in firsts}
    found = {words[w]: LABELS["entities"][tags[token]] for w, token in firsts.items() if tags[token]}
    assert found == {"ada": "B-PER", "lovelace": "I-PER", "paris": "B-LOC", "cairo": "B-LOC"}, found
    assert tokenizer.decode(best) == "peru", tokenizer.decode(best)
    probabilities = [row.softmax(-1) for row in rows(models["sentiment"], TEXTS)]
    assert [int(row.argmax()) for row in probabilities] == [1, 0, 1, 0, 1], probabilities
    return {
        "texts": TEXTS,
        "blank": blank,
        "word": tokenizer.decode(best),
        "score": float(scores_V[best]),
        "cls": [row[0].tolist() for row in hidden],
        "mean": [row.mean(0).tolist() for row in hidden],
        "tokens": [row.tolist() for row in hidden],
        "probabilities": [row.tolist() for row in probabilities],
        "tags": found,
        "reviews": REVIEWS,
        "sentences": SENTENCES,
        "labels": LABELS,
    }


def make(folder: Path, architecture: str) -> None:
    """Train the heads of one architecture on one encoder, publish each in both forms, write the answers."""
    torch.manual_seed(0)
    name, sizes = ARCHITECTURES[architecture]
    tokenizer = make_tokenizer()
    values = {"vocab_size": len(tokenizer), "num_attention_heads": 4, "intermediate_size": 96, **sizes, **IDS}
    values |= {"max_position_embeddings": 96, "type_vocab_size": 2} if architecture == "bert" else {}
    values |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.1}
    config = clozebert.ClozeBertConfig.from_name(name, **values)
    mlm = clozebert.ClozeBertForMaskedLM(config)
    losses = {"mlm": train(mlm, masked(tokenizer), 300)}
    found = {"mlm": mlm}
    reviews = tokenizer([text for text, _ in REVIEWS], padding=True, return_tensors="pt")
    batches = {
        "sentiment": {**reviews, "labels": torch.tensor([label for _, label in REVIEWS])},
        "entities": tagged(tokenizer),
    }
    classes = {
        "sentiment": clozebert.ClozeBertForSequenceClassification,
        "entities": clozebert.ClozeBertForTokenClassification,
    }
    for head, model_class in classes.items():
        id2label = dict(enumerate(LABELS[head]))
        label2id = {label: number for number, label in id2label.items()}
        own = clozebert.ClozeBertConfig.from_name(name, **values, id2label=id2label, label2id=label2id)
        model = model_class(own)
        model.base_model.load_state_dict(mlm.base_model.state_dict(), strict=False)
        losses[head] = train(model, batches[head], 150)
        found[head] = model
    print(architecture, {head: round(loss, 4) for head, loss in losses.items()}, flush=True)
    (folder / architecture).mkdir(parents=True)
    path = folder / architecture / "answers.json"
    path.write_text(json.dumps(answers(found, tokenizer)), encoding="utf-8")
    for head, model in found.items():
        source = folder / architecture / head / "trained"
        model.save_pretrained(source)
        save_tokenizer(tokenizer, source)
        for form in ("bundle", "native"):
            completion = Completion(serving=SERVING.get((architecture, head), ()), int8_texts=tuple(TEXTS))
            output = folder / architecture / head / form
            publish(source, f"doors/{head}", form=form, completion=completion, dry_run=True, output_dir=output)


if __name__ == "__main__":
    for architecture in ARCHITECTURES:
        make(Path(sys.argv[1]), architecture)
