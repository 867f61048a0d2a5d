#!/usr/bin/env python
"""Turn a finished pretraining run into the folder that is published, with weights in bf16 and a model card.

    python release/complete.py --run runs/release/clozebert-books --output_dir rounded
    python release/complete.py --run runs/release/clozebert-books --masked_lm masked_lm.json --output_dir complete

The first command writes no card. Measure its weights with `clozebert evaluate`. The second command takes that
measurement and writes the card too. The card lists the books from books.tsv and the scores of fine-tuning from
scores.json, and quotes training.md on how the run went. These three files lie beside this one.
"""

import argparse
import csv
import json
import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DESCRIPTION = (
    "A small English encoder, pretrained from scratch by masked-language modelling on 41 books: textbooks of "
    "OpenStax and novels and essays of Standard Ebooks. It is an example of what a short run on little text gives, and "
    "a start for experiments; for English at large, a larger published model is better."
)
STATEMENT = """\
Trained on {train} books, tested on {validation} others, 68 MB of text in all. The textbooks are by OpenStax, Rice \
University, under [CC BY 4.0](https://creativecommons.org/licenses/by/4.0/), in editions that were under it at the \
commit given; access for free at openstax.org. They were changed: plain text was taken from their XML, without \
exercises, tables, equations and notes. The other books are in the public domain in the United States; Standard Ebooks \
gives its own work on them under CC0 1.0. Some authors of books that were held out died less than 70 years ago, so \
those books are not free everywhere; the model was not trained on them. The weights are under CC BY 4.0. OpenStax and \
Standard Ebooks have not endorsed the model.

| book | by | licence | source | used for |
| --- | --- | --- | --- | --- |
{rows}
"""


def statement(books: list[dict[str, str]]) -> str:
    """The books, their licences and sources, as Markdown."""
    rows = [
        f"| {book['title']} | {book['author']} | {book['licence']} "
        f"| [{book['commit'][:10]}]({book['repository']}/tree/{book['commit']}) | {book['split']} |"
        for book in books
    ]
    counts = {split: sum(book["split"] == split for book in books) for split in ("train", "validation")}
    return STATEMENT.format(rows="\n".join(rows), **counts)


def read_books() -> list[dict[str, str]]:
    with (HERE / "books.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def score_table(scores: dict[str, Any]) -> str:
    """Scores with and without fine-tuning, as Markdown."""
    rows = [f"| {row['title']} | {row['metric']} | {row['value']} |" for row in scores["rows"]]
    return "\n".join([scores["how"], "", "| data | measure | value |", "| --- | --- | --- |", *rows])


def complete(run: Path, masked_lm: Path | None, output: Path) -> None:
    """Write the folder; the card only with `masked_lm`, the results of `clozebert evaluate`."""
    import torch

    from clozebert import ClozeBertForMaskedLM
    from clozebert.hub.card import read_card, write_card
    from clozebert.hub.processors import copy_processors

    model = ClozeBertForMaskedLM.from_pretrained(run, dtype=torch.bfloat16)
    model.save_pretrained(output)
    copy_processors(run, output)
    if masked_lm is None:
        return
    shutil.copy(run / "loss_curve.png", output)
    card = read_card(run)
    assert card is not None, f"{run} has no card"
    history = card.history()
    figures = json.loads(masked_lm.read_text(encoding="utf-8"))
    parts = [
        f"Held-out books, all of their tokens, masks of 15 %, rows of 128: loss {figures['eval_loss']:.3f} nats, "
        f"accuracy {100 * figures['eval_accuracy']:.1f} %."
    ]
    if (HERE / "scores.json").is_file():
        parts.append(score_table(json.loads((HERE / "scores.json").read_text(encoding="utf-8"))))
    history["evaluation"] = "\n\n".join(parts)
    if (HERE / "training.md").is_file():
        history["training"] = (HERE / "training.md").read_text(encoding="utf-8").strip() + "\n\n" + history["training"]
    write_card(output, {**card.facts(), "description": DESCRIPTION}, history=history)
    (output / "statement.md").write_text(statement(read_books()), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--masked_lm", type=Path)
    parser.add_argument("--output_dir", type=Path, required=True)
    arguments = parser.parse_args()
    complete(arguments.run, arguments.masked_lm, arguments.output_dir)


if __name__ == "__main__":
    main()
