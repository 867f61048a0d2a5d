"""The report of an adaptation (`report.md`), and the facts for the model card."""

from collections.abc import Mapping
from typing import Any

from ..utils.wording import counted, in_cell

_STAGES = {"before": "before", "start": "with the new vocabulary, untrained", "after": "after"}
_STAGES_OF_A_STUDENT = {"before": "teacher", "start": "student, untrained", "after": "student"}
_FORGOTTEN = 0.3  # nats
TEXT_NAMES = {"new": "held-out new text", "general": "general text"}


def render_report(results: Mapping[str, Any]) -> str:
    """The report in Markdown.

    Args:
        results: the content of `adaptation_results.json`; see `adapt.adapt`.
    """
    names = _stage_names(results)
    stages = [stage for stage in names if stage in results["evaluation"]]
    new_vocabulary = _has_new_vocabulary(results)
    parts = [
        f"# {_title(results)}",
        f"The model is of type `{results['model_type']}` and has {results['parameters']['after']:,} parameters. "
        f"Training took {counted(results['steps'], 'step')}, {results['tokens']:,} tokens and "
        f"{counted(round(results['train_seconds']), 'second')}; the whole command "
        f"{counted(round(results['seconds']), 'second')}.",
        "## Masked-LM loss",
        "The mean of -log p over masked tokens, in nats. The masks are frozen: 15 % of the tokens, the same before and "
        "after." + (" The tokenizers differ, so compare the loss per word." if new_vocabulary else ""),
        _table(["", *(names[stage] for stage in stages)], list(_loss_rows(results["evaluation"], stages))),
        "## Vocabulary",
        _table(["", "before", "after"], list(_vocabulary_rows(results))),
        "## Overlap",
        "Documents that hold a run of 13 words which the training text holds too.",
        _table(["text", "overlap"], [[name, text] for name, text in results["overlap"].items()]),
        "## Settings",
        _table(["", ""], [[name, value] for name, value in results["settings"].items()]),
    ]
    return "\n\n".join(parts) + "\n"


def warnings_of(results: Mapping[str, Any]) -> list[str]:
    """What an adaptation made worse, one sentence each. A student is not compared: it has fewer layers."""
    evaluation = results["evaluation"]
    if results.get("student"):
        return []
    loss = "loss_per_word" if _has_new_vocabulary(results) else "eval_loss"
    rises = {text: found[loss] - evaluation["before"][text][loss] for text, found in evaluation["after"].items()}
    found = []
    if rises["new"] > 0:
        found.append(
            f"warning: the loss of the new text has risen by {rises['new']:.2f}: the model is worse than before; "
            f"give more text or more steps, or a lower --learning_rate"
        )
    if rises.get("general", 0) > _FORGOTTEN:
        found.append(
            f"warning: the loss of the general text has risen by {rises['general']:.2f}: the model forgets; give "
            f"general text to --replay_input, or a lower --learning_rate"
        )
    return found


def _has_new_vocabulary(results: Mapping[str, Any]) -> bool:
    """Whether the model reads other tokens than before, so that losses of a token do not compare."""
    return "start" in results["evaluation"] and not results.get("student")


def _stage_names(results: Mapping[str, Any]) -> Mapping[str, str]:
    return _STAGES_OF_A_STUDENT if results.get("student") else _STAGES


def _title(results: Mapping[str, Any]) -> str:
    if results.get("student"):
        return f"{results['model']}, distilled into a student of {results['student']}"
    return f"{results['model']}, adapted to other text"


def _loss_rows(evaluation: Mapping[str, Any], stages: list[str]) -> Any:
    for text, name in TEXT_NAMES.items():
        if text not in evaluation["before"]:
            continue
        found = [evaluation[stage][text] for stage in stages]
        yield [f"{name}: loss per token", *(f"{one['eval_loss']:.4f}" for one in found)]
        yield [f"{name}: accuracy", *(f"{one['eval_accuracy']:.4f}" for one in found)]
        yield [f"{name}: predicted tokens", *(f"{one['eval_predicted_tokens']:,}" for one in found)]
        yield [f"{name}: tokens per word", *(f"{one['tokens_per_word']:.3f}" for one in found)]
        if any(one.get("unknown_share") for one in found):
            yield [f"{name}: unknown tokens, not predicted", *(f"{one.get('unknown_share', 0):.2%}" for one in found)]
        if len(stages) > 2:
            yield [f"{name}: loss per word", *(f"{one['loss_per_word']:.4f}" for one in found)]


def _vocabulary_rows(results: Mapping[str, Any]) -> Any:
    for name in ("vocabulary", "parameters"):
        yield [name, *(f"{results[name][stage]:,}" for stage in ("before", "after"))]
    for name, value in results["vocabulary_changes"].items():
        shown = (
            ", ".join(f"{key} {count:,}" for key, count in value.items()) if isinstance(value, dict) else f"{value:,}"
        )
        yield [name, "", shown]


def _table(heads: list[str], rows: list[list[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *([in_cell(str(cell)) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def adaptation_facts(results: Mapping[str, Any], *, name: str, base_model: str | None) -> dict[str, Any]:
    """The facts for `hub.card.write_card`."""
    evaluation, names = results["evaluation"], _stage_names(results)
    kind, loss = "masked-LM loss", "eval_loss"
    if _has_new_vocabulary(results):
        kind, loss = "masked-LM loss per word", "loss_per_word"
    metrics: dict[str, Any] = {}
    for text, shown in TEXT_NAMES.items():
        for stage in evaluation:
            if text in evaluation[stage]:
                metrics[f"{kind}, {shown}, {names[stage]}"] = evaluation[stage][text][loss]
    for text, overlap in results["overlap"].items():
        metrics[f"13-gram overlap with the training text: {text}"] = overlap
    return {
        "name": name,
        "description": f"{_title(results)}, by masked-language modelling.",
        "base_model": base_model,
        "started_from": results["model"],
        "corpus": results["corpora"],
        "hyperparameters": results["settings"],
        "steps": results["steps"],
        "tokens": results["tokens"],
        "seconds": results["train_seconds"],
        "metrics": metrics,
        "versions": results["versions"],
    }
