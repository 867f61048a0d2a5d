"""`adapt` compared with continued training by the loop of transformers' run_mlm: small native models, one CPU thread.

    python benchmarks/adaptation.py continue --model bert --data DATA --output_dir OUT      about four minutes
    python benchmarks/adaptation.py vocabulary --algorithm bpe --data DATA --output_dir OUT     some seconds
    python benchmarks/adaptation.py trim --data DATA --output_dir OUT                           half a minute

DATA holds `mlm_standardebooks/text`, `mlm_openstax/text` and `multi_ud_finnish_tdt`. Budgets are process time of one
thread. A model of transformers' own class is pretrained on novels. Both loops then continue on textbooks, with the same
weights, text, held-out text and masks. The loop of run_mlm gets the process time that `adapt` took after preparing the
text, including its last evaluation. Its learning rate is transformers' default, and then that of `adapt`.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import transformers

from clozebert.adaptation.adapt import adapt
from clozebert.adaptation.arguments import AdaptationArguments
from clozebert.adaptation.start import make_start, open_source_model
from clozebert.configuration import ClozeBertConfig
from clozebert.corpus import Corpus, Masking
from clozebert.corpus.preparation.prepare import prepare
from clozebert.corpus.readers.inputs import Reader
from clozebert.corpus.tokenizer import load_tokenizer, train_tokenizer
from clozebert.corpus.vocabulary.changes import extend
from clozebert.hub.convert import from_native, save_native
from clozebert.hub.loading import load_clozebert
from clozebert.training.arguments import PretrainingArguments
from clozebert.training.initialization.initial_model import set_token_ids
from clozebert.training.pretraining import pretrain
from clozebert.training.scoring import score_frozen_masks
from clozebert.utils.tokenizer_files import save_tokenizer

SIZES: dict[str, Any] = {
    "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 512,
}  # fmt: skip
VOCABULARY, ROW, EVAL_BATCHES = 8192, 128, 8
NOVELS, TEXTBOOKS = 12, 3


def books(data: Path, name: str, count: int) -> list[str]:
    return [str(path) for path in sorted((data / name / "text").glob("*"))[:count]]


def make_native(
    model_type: str, folder: Path, data: Path, *, texts: list[str] | None = None, vocabulary: int | None = None
) -> None:
    """Save a randomly initialised model of transformers' own class, and a tokenizer trained on novels or `texts`."""
    texts = texts or [
        Path(path).read_text(encoding="utf-8")[:400_000] for path in books(data, "mlm_standardebooks", NOVELS)
    ]
    tokenizer = train_tokenizer(
        texts, algorithm="wordpiece" if model_type == "bert" else "bpe", vocab_size=vocabulary or VOCABULARY,
        model_max_length=256,
    )  # fmt: skip
    ids = {"pad_token_id": tokenizer.pad_token_id}
    if model_type == "modernbert":
        ids |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
        ids |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    stem = {"bert": "Bert", "roberta": "Roberta", "modernbert": "ModernBert"}[model_type]
    longest = 257 if model_type == "roberta" else 256
    torch.manual_seed(0)
    config = getattr(transformers, f"{stem}Config")(
        vocab_size=len(tokenizer), max_position_embeddings=longest, **SIZES, **ids
    )
    getattr(transformers, f"{stem}ForMaskedLM")(config).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


def pretrain_native(model_type: str, folder: Path, random: Path, data: Path, minutes: float) -> None:
    """Pretrain on novels and save as the native model."""
    tokenizer = load_tokenizer(str(random))
    model = from_native(random)
    set_token_ids(model.config, tokenizer)
    model.save_pretrained(folder / "start")
    prepare(
        Reader(books(data, "mlm_standardebooks", NOVELS), document_separator="line"), tokenizer=tokenizer,
        output_dir=folder / "novels", num_processes=1,
    )  # fmt: skip
    run = PretrainingArguments(
        corpus=[str(folder / "novels")], tokenizer_name=str(random), model_name_or_path=str(folder / "start"),
        output_dir=str(folder / "run"), max_minutes=minutes, max_steps=1000, warmup_steps=50, optimizer="muon",
        learning_rate=3e-3, global_batch_size=16, per_device_train_batch_size=16, max_seq_length=ROW,
        lr_scheduler_type="wsd", eval_steps=0, max_eval_batches=EVAL_BATCHES, disable_tqdm=True, logging_steps=100,
    )  # fmt: skip
    pretrain(run, ClozeBertConfig())
    save_native(load_clozebert(folder / "run"), folder / "native", tokenizer, architecture=model_type)


def run_mlm(folder: Path, corpus: Corpus, *, seconds: float, learning_rate: float, bf16: bool) -> dict[str, Any]:
    """Continue with the loop of transformers' run_mlm: rows cut from the joined text, 8 per step, AdamW with PyTorch's
    weight decay of 0.01, rate to 0.

    As many steps as fit into `seconds` of process time, estimated from 6 steps that are then discarded.
    """
    from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling, get_scheduler

    tokenizer = load_tokenizer(str(folder))
    ids = np.concatenate(
        [np.r_[tokenizer.cls_token_id, corpus.document(i), tokenizer.sep_token_id] for i in range(len(corpus))]
    )
    rows = torch.from_numpy(ids[: len(ids) // ROW * ROW].reshape(-1, ROW))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)

    def train(steps: int) -> tuple[Any, float]:
        torch.manual_seed(0)
        model = AutoModelForMaskedLM.from_pretrained(folder).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
        schedule = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=steps)
        order = torch.randperm(len(rows))
        begun = time.process_time()
        for step in range(steps):
            picked = [order[(8 * step + i) % len(rows)] for i in range(8)]
            batch = collator([{"input_ids": rows[i]} for i in picked])
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return model, time.process_time() - begun

    train(2)
    of_step = train(6)[1] / 6
    steps = max(1, int(seconds / of_step))
    model, took = train(steps)
    return {"model": model.eval(), "steps": steps, "seconds": took, "tokens": steps * 8 * ROW}


def continue_training(arguments: argparse.Namespace) -> dict[str, Any]:
    from clozebert.utils.device import has_fast_bf16

    torch.set_num_threads(1)
    data, out, model_type = Path(arguments.data), Path(arguments.output_dir) / arguments.model, arguments.model
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "native" / "config.json").is_file():
        make_native(model_type, out / "random", data)
        pretrain_native(model_type, out, out / "random", data, arguments.pretrain_minutes)
    native = out / "native"
    held_out = books(data, "mlm_standardebooks", NOVELS + 2)[NOVELS:]
    settings: dict[str, Any] = {
        "model_name_or_path": str(native), "input": books(data, "mlm_openstax", TEXTBOOKS), "general_input": held_out,
        "output_dir": str(out / f"adapted-{arguments.replay_share:g}"), "max_seq_length": ROW, "num_processes": 1,
        "disable_tqdm": True,
        "document_separator": "line",
        "max_eval_batches": EVAL_BATCHES, "max_minutes": arguments.minutes, "overwrite_output_dir": False,
    }  # fmt: skip
    if arguments.replay_share:
        settings["replay_input"] = books(data, "mlm_standardebooks", NOVELS)
        settings["replay_share"] = arguments.replay_share
    adapt(AdaptationArguments(prepare_only=True, **settings), say=lambda line: None)
    begun = time.process_time()
    results = adapt(AdaptationArguments(**settings), say=lambda line: None)
    seconds = time.process_time() - begun
    work = Path(settings["output_dir"]) / "adaptation"
    splits = {"new": Corpus(work / "corpus", "validation"), "general": Corpus(work / "general")}
    figures: dict[str, Any] = {
        "model": model_type, "precision": "bf16" if has_fast_bf16(torch.device("cpu")) else "float32",
        "parameters": results["parameters"]["after"], "threads": 1, "adapt_process_seconds": seconds,
        "adapt_steps": results["steps"], "adapt_tokens": results["tokens"], "settings": results["settings"],
        "loss": {
            f"{stage}, {text}": found["eval_loss"]
            for stage, texts in results["evaluation"].items() for text, found in texts.items()
        },
    }  # fmt: skip
    for rate in (5e-5, results["settings"]["learning_rate"]):
        found = run_mlm(
            native, Corpus(work / "corpus"), seconds=seconds, learning_rate=rate, bf16=figures["precision"] == "bf16"
        )
        ours = from_native(found.pop("model")).eval()
        for text, split in splits.items():
            scored = score_frozen_masks(
                ours, split, max_seq_length=ROW, masking=Masking(rate=0.15), seed=42, max_batches=EVAL_BATCHES
            )
            figures["loss"][f"run_mlm {rate:g}, {text}"] = scored["eval_loss"]
        figures[f"run_mlm {rate:g}"] = found
    return figures


def finnish_sentences(data: Path) -> list[str]:
    return [
        " ".join(cells[1] for line in sentence.splitlines() if (cells := line.split("\t"))[0].isdigit())
        for path in sorted((data / "multi_ud_finnish_tdt").glob("*.conllu"))
        for sentence in path.read_text(encoding="utf-8").split("\n\n")
    ]


def anatomy(data: Path) -> list[str]:
    return (data / "mlm_openstax" / "text" / "anatomy-physiology.txt").read_text(encoding="utf-8").split("\n")


def vocabulary(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens per word of other text, before and after learning 2,000 new entries from four fifths of it."""
    data = Path(arguments.data)
    novels = [Path(path).read_text(encoding="utf-8")[:150_000] for path in books(data, "mlm_standardebooks", NOVELS)]
    old = train_tokenizer(novels, algorithm=arguments.algorithm, vocab_size=VOCABULARY)
    figures: dict[str, Any] = {"algorithm": arguments.algorithm, "vocabulary": len(old)}
    for name, texts in (("Finnish", finnish_sentences(data)), ("anatomy", anatomy(data)[:6000])):
        learn, test = texts[: len(texts) * 4 // 5], texts[len(texts) * 4 // 5 :]
        begun = time.process_time()
        new = extend(old, learn, 2000).tokenizer
        seconds = time.process_time() - begun
        words = sum(len(text.split()) for text in test)
        novel_words = sum(len(text.split()) for text in novels)
        figures[name] = {
            "tokens_per_word_before": _count(old, test) / words, "tokens_per_word_after": _count(new, test) / words,
            "novels_before": _count(old, novels) / novel_words, "novels_after": _count(new, novels) / novel_words,
            "entries": len(new) - len(old), "seconds": seconds,
        }  # fmt: skip
    return figures


def trim(arguments: argparse.Namespace) -> dict[str, Any]:
    """A vocabulary of 64,000 entries, learned from all texts, trimmed to Finnish."""
    data, finnish = Path(arguments.data), finnish_sentences(Path(arguments.data))
    novels = [Path(path).read_text(encoding="utf-8")[:300_000] for path in books(data, "mlm_standardebooks", NOVELS)]
    torch.set_num_threads(1)
    return trim_to_finnish(Path(arguments.output_dir), [*novels, *anatomy(data), *finnish], finnish)


def trim_to_finnish(out: Path, everything: list[str], finnish: list[str]) -> dict[str, Any]:
    """Parameters before and after trimming, and whether the logits of kept tokens are bitwise equal."""
    folder = out / "many"
    if not (folder / "config.json").is_file():
        tokenizer = train_tokenizer(everything, algorithm="bpe", vocab_size=64_000, model_max_length=256)
        torch.manual_seed(0)
        config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=256, **SIZES)
        transformers.BertForMaskedLM(config).save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
    source = open_source_model(str(folder))
    arguments = AdaptationArguments(str(folder), str(out / "unused"), input=["-"], trim_vocabulary=True)
    start = make_start(arguments, source, texts=[], kept_texts=finnish)
    old, new = source.load().eval(), start.model.eval()
    number_of = source.tokenizer.get_vocab()
    kept = [number_of[token] for token in start.tokenizer.convert_ids_to_tokens(range(len(start.tokenizer)))]
    same, largest, count = True, 0.0, 0
    with torch.no_grad():
        for text in finnish[:64]:
            before = old(**source.tokenizer(text, return_tensors="pt")).logits[0][:, kept]
            after = new(**start.tokenizer(text, return_tensors="pt")).logits[0]
            same &= torch.equal(before, after)
            largest, count = max(largest, float((before - after).abs().max())), count + before.numel()
    sizes = [sum(p.numel() for p in model.parameters()) for model in (old, new)]
    return {
        "vocabulary": [len(source.tokenizer), len(start.tokenizer)], "parameters": sizes,
        "fewer": 1 - sizes[1] / sizes[0], "logits_bit_equal": same, "largest_difference": largest,
        "logits_compared": count,
    }  # fmt: skip


def _count(tokenizer: Any, texts: list[str]) -> int:
    return sum(len(one.ids) for one in tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["continue", "vocabulary", "trim"])
    parser.add_argument("--algorithm", default="bpe", choices=["wordpiece", "bpe", "unigram"])
    parser.add_argument("--model", default="bert", choices=["bert", "roberta", "modernbert"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--pretrain_minutes", type=float, default=1.25)
    parser.add_argument("--minutes", type=float, default=0.75)
    parser.add_argument("--replay_share", type=float, default=0.0, help="of rows from the novels; 0: none")
    arguments = parser.parse_args()
    program = {"continue": continue_training, "vocabulary": vocabulary, "trim": trim}[arguments.what]
    Path(arguments.output_dir).mkdir(parents=True, exist_ok=True)
    text = json.dumps(program(arguments), indent=2)
    of = {
        "continue": f"-{arguments.model}-{arguments.replay_share:g}",
        "vocabulary": f"-{arguments.algorithm}",
        "trim": "",
    }[arguments.what]
    name = f"{arguments.what}{of}.json"
    (Path(arguments.output_dir) / name).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
