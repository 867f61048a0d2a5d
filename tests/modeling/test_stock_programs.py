"""Programs in the manner of transformers' examples (GLUE, NER, masked LM), on small made-up data, from a saved encoder.

They say `Auto…` and know nothing of clozebert. Each must end with finite numbers, learn a task that is easy to learn,
and leave a folder that opens in a pipeline.
"""

import itertools
import json
import math

import numpy as np
import pytest
import torch
import transformers
from often import often
from stock_training import FIRST_WORD, VOCABULARY, tokenizer

from clozebert import ClozeBertConfig, ClozeBertForMaskedLM, ClozeBertModel

datasets = pytest.importorskip("datasets")
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 29,
}  # fmt: skip


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """Folders of an encoder alone and of a masked LM, each with its tokenizer, as a pretraining run leaves them."""
    root = tmp_path_factory.mktemp("encoders")
    for model_class, folder in ((ClozeBertModel, "body"), (ClozeBertForMaskedLM, "masked lm")):
        torch.manual_seed(0)
        model_class(ClozeBertConfig(**SIZES)).save_pretrained(root / folder)
        tokenizer().save_pretrained(root / folder)
    return root


def arguments(directory, **settings):
    return transformers.TrainingArguments(
        output_dir=str(directory), per_device_train_batch_size=16, per_device_eval_batch_size=10, learning_rate=3e-3,
        eval_strategy="epoch", logging_strategy="epoch", seed=0, use_cpu=True, report_to=[], disable_tqdm=True,
        **settings,
    )  # fmt: skip


def losses(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def text_of(ids):
    return " ".join(f"w{i}" for i in ids)


# ---------------------------------------------------------------------------------------------------------------- GLUE


def opinions(number, seed):
    """Pairs of sentences; the second holds one of eight words that are good (w5 … w8) or bad (w9 … w12)."""
    draw = np.random.default_rng(seed)
    rows = {"sentence1": [], "sentence2": [], "label": []}
    for _ in range(number):
        first, second = (draw.integers(13, VOCABULARY, draw.integers(3, 9)) for _ in range(2))
        label = int(draw.integers(2))
        second[draw.integers(len(second))] = draw.integers(FIRST_WORD, FIRST_WORD + 4) + 4 * (1 - label)
        rows["sentence1"].append(text_of(first))
        rows["sentence2"].append(text_of(second))
        rows["label"].append(label)
    return datasets.Dataset.from_dict(rows)


@pytest.mark.parametrize("kind", often(["masked lm", "body"]))
def test_classification_of_sentence_pairs(kind, encoders, tmp_path):
    label_list = ["bad", "good"]
    config = transformers.AutoConfig.from_pretrained(encoders / kind, num_labels=2, finetuning_task="opinions")
    words = transformers.AutoTokenizer.from_pretrained(encoders / kind, use_fast=True)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(encoders / kind, config=config)
    assert model.config.label2id == transformers.PreTrainedConfig(num_labels=2).label2id, "no labels of its own"
    model.config.label2id = {label: i for i, label in enumerate(label_list)}
    model.config.id2label = dict(enumerate(label_list))

    def preprocess(examples):
        pairs = (examples["sentence1"], examples["sentence2"])
        return words(*pairs, padding=False, max_length=min(128, words.model_max_length), truncation=True)

    train, validation = (opinions(n, seed).map(preprocess, batched=True) for n, seed in ((200, 0), (50, 1)))

    def compute_metrics(scored):
        found = scored.predictions[0] if isinstance(scored.predictions, tuple) else scored.predictions
        return {"accuracy": float((found.argmax(axis=1) == scored.label_ids).mean())}

    settings = {"save_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
    trainer = transformers.Trainer(
        model=model, args=arguments(tmp_path, num_train_epochs=8, **settings), train_dataset=train,
        eval_dataset=validation, compute_metrics=compute_metrics, processing_class=words,
    )  # fmt: skip
    result = trainer.train()
    trainer.save_model()
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
    metrics = trainer.evaluate(eval_dataset=validation)
    trainer.save_metrics("eval", metrics)
    predictions = trainer.predict(validation.remove_columns("label"), metric_key_prefix="predict").predictions
    trainer.create_model_card(finetuned_from=str(encoders / kind), tasks="text-classification", language="en")

    assert all(math.isfinite(value) for value in metrics.values())
    assert losses(trainer)[-1] < 0.5 * losses(trainer)[0]
    majority = max(np.bincount(validation["label"])) / len(validation)
    assert metrics["eval_accuracy"] >= 0.9 > majority
    assert (predictions.argmax(1) == validation["label"]).mean() == metrics["eval_accuracy"]
    assert json.loads((tmp_path / "all_results.json").read_text())["eval_accuracy"] == metrics["eval_accuracy"]
    assert (tmp_path / "README.md").is_file()
    classify = transformers.pipeline("text-classification", str(tmp_path))
    pairs = [{"text": row["sentence1"], "text_pair": row["sentence2"]} for row in validation]
    labels = [found["label"] for found in classify(pairs, batch_size=7)]
    assert labels == [label_list[i] for i in predictions.argmax(1)]


# ----------------------------------------------------------------------------------------------------------------- NER

TAGS = ["O", "B-PER", "I-PER"]


def names(number, seed):
    """Sentences of words with names in them: one of w5 … w8 begins a name, and the word after it ends it."""
    draw = np.random.default_rng(seed)
    rows = {"tokens": [], "ner_tags": []}
    for _ in range(number):
        ids = draw.integers(9, VOCABULARY, draw.integers(4, 11))
        tags = np.zeros(len(ids), int)
        start = draw.integers(len(ids) - 1)
        ids[start], tags[start], tags[start + 1] = draw.integers(FIRST_WORD, 9), 1, 2
        rows["tokens"].append([f"w{i}" for i in ids])
        rows["ner_tags"].append(tags.tolist())
    return datasets.Dataset.from_dict(rows)


def test_tagging_in_a_loop_of_accelerate(encoders, tmp_path):
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    config = transformers.AutoConfig.from_pretrained(encoders / "body", num_labels=len(TAGS))
    words = transformers.AutoTokenizer.from_pretrained(encoders / "body", use_fast=True)
    model = transformers.AutoModelForTokenClassification.from_pretrained(
        encoders / "body", config=config, ignore_mismatched_sizes=True
    )
    model.resize_token_embeddings(len(words))
    model.config.label2id = {tag: i for i, tag in enumerate(TAGS)}
    model.config.id2label = dict(enumerate(TAGS))

    def tokenize_and_align(examples):
        inputs = words(examples["tokens"], max_length=29, truncation=True, is_split_into_words=True)
        inputs["labels"] = [
            [-100 if word is None else tags[word] for word in inputs.word_ids(batch_index=i)]
            for i, tags in enumerate(examples["ner_tags"])
        ]
        return inputs

    columns = ["tokens", "ner_tags"]
    train, validation = (
        names(n, seed).map(tokenize_and_align, batched=True, remove_columns=columns) for n, seed in ((200, 0), (50, 1))
    )
    collator = transformers.DataCollatorForTokenClassification(words)
    loaders = [
        DataLoader(train, shuffle=True, collate_fn=collator, batch_size=8),
        DataLoader(validation, collate_fn=collator, batch_size=8),
    ]
    no_decay = ("bias", "norm")
    groups = [
        {"params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in model.named_parameters() if n.endswith(no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    epochs = 10
    schedule = transformers.get_scheduler(
        "linear", optimizer=optimizer, num_warmup_steps=5, num_training_steps=epochs * len(loaders[0])
    )
    model, optimizer, train_loader, eval_loader, schedule = accelerator.prepare(model, optimizer, *loaders, schedule)

    history = []
    for _ in range(epochs):
        model.train()
        total = 0.0
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                total += loss.detach().float().item()
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        history.append(total / len(train_loader))
    model.eval()
    right = counted = majority = 0
    for batch in eval_loader:
        with torch.no_grad():
            outputs = model(**batch)
        found, labels = outputs.logits.argmax(dim=-1), batch["labels"]
        found = accelerator.pad_across_processes(found, dim=1, pad_index=-100)
        labels = accelerator.pad_across_processes(labels, dim=1, pad_index=-100)
        found, labels = accelerator.gather_for_metrics((found, labels))
        right += int((found == labels).sum())
        counted += int((labels != -100).sum())
        majority += int((labels == 0).sum())
    accelerator.wait_for_everyone()
    unwrapped = accelerator.unwrap_model(model)
    unwrapped.save_pretrained(
        tmp_path, is_main_process=accelerator.is_main_process, save_function=accelerator.save,
        state_dict=accelerator.get_state_dict(model),
    )  # fmt: skip
    words.save_pretrained(tmp_path)

    assert all(map(math.isfinite, history))
    assert history[-1] < 0.3 * history[0]
    assert right / counted >= 0.97 > majority / counted
    tag = transformers.pipeline("token-classification", str(tmp_path), aggregation_strategy="simple")
    found = tag("w20 w6 w30 w21")
    assert [(group["entity_group"], group["word"]) for group in found] == [("PER", "w6 w30")]


# ----------------------------------------------------------------------------------------------------------- masked LM


def test_masked_language_modelling_goes_on_from_a_saved_model(encoders, tmp_path):
    """Documents that say one word again and again: the masked word is the one around it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    assert "clozebert" in {config.model_type for config in MODEL_FOR_MASKED_LM_MAPPING}, "--model_type"
    config = transformers.AutoConfig.from_pretrained(encoders / "masked lm")
    words = transformers.AutoTokenizer.from_pretrained(encoders / "masked lm", use_fast=True)
    model = transformers.AutoModelForMaskedLM.from_pretrained(encoders / "masked lm", config=config, dtype="float32")
    if len(words) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(words))
    draw, block = np.random.default_rng(0), 12

    def document(_):
        return text_of([draw.integers(FIRST_WORD, VOCABULARY)] * (block - 2))

    def group_texts(examples):
        joined = {key: list(itertools.chain(*values)) for key, values in examples.items()}
        total = len(joined["input_ids"]) // block * block
        return {key: [ids[i : i + block] for i in range(0, total, block)] for key, ids in joined.items()}

    raw = datasets.DatasetDict(
        {
            split: datasets.Dataset.from_dict({"text": [*map(document, range(n))]})
            for split, n in (("train", 400), ("validation", 60))
        }
    )
    tokenized = raw.map(
        lambda examples: words(examples["text"], return_special_tokens_mask=True), batched=True, remove_columns=["text"]
    )
    grouped = tokenized.map(group_texts, batched=True)

    def preprocess_logits_for_metrics(logits, labels):
        if isinstance(logits, tuple):
            logits = logits[0]
        return logits.argmax(dim=-1)

    def compute_metrics(scored):
        counted = scored.label_ids != -100
        return {"accuracy": float((scored.predictions == scored.label_ids)[counted].mean())}

    trainer = transformers.Trainer(
        model=model, args=arguments(tmp_path, num_train_epochs=12, save_strategy="no"), train_dataset=grouped["train"],
        eval_dataset=grouped["validation"], processing_class=words, compute_metrics=compute_metrics,
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer=words, mlm_probability=0.15),
        preprocess_logits_for_metrics=preprocess_logits_for_metrics,
    )  # fmt: skip
    before = trainer.evaluate()
    trainer.train()
    trainer.save_model()
    metrics = trainer.evaluate()

    assert all(math.isfinite(value) for value in metrics.values())
    assert losses(trainer)[-1] < 0.5 * losses(trainer)[0]
    assert math.exp(metrics["eval_loss"]) < 0.2 * math.exp(before["eval_loss"])
    assert metrics["eval_accuracy"] >= 0.8
    guesses = transformers.pipeline("fill-mask", str(tmp_path), top_k=1)("w9 w9 [MASK] w9 w9 w9 w9 w9 w9 w9")
    assert guesses[0]["token_str"] == "w9"
