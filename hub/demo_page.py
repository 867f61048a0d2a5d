"""A page to try a model on: fill in blanks, tag, classify, and look at its attention.

This file needs transformers and gradio only: it is also the `app.py` of a Space.
"""

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

MAX_CHARACTERS = 20_000
_LONGEST, _SHOWN, _TOP = 512, 40, 5
EXAMPLES = {
    "fill-mask": "The capital of France is {mask}.",
    "tagging": "Marie Curie was born in Warsaw and worked in Paris.",
    "classification": "A quiet film that stays with you for days.",
}
_KINDS = {
    "ForMaskedLM": "fill-mask",
    "ForTokenClassification": "tagging",
    "ForSequenceClassification": "classification",
}
# Two columns of a table do not fit a telephone: what is wide scrolls inside its own frame, and its names stay in sight.
STYLE = """
.scroll { overflow-x: auto; max-width: 100%; }
.scroll table, .scroll tr, .scroll th, .scroll td { border: none !important; }
.scroll table { border-collapse: collapse; font-size: 0.85rem; width: auto; }
.scroll td, .scroll th { padding: 2px 12px 2px 0; white-space: nowrap; text-align: left; }
.grid td { width: 1.1rem; min-width: 1.1rem; height: 1.1rem; padding: 0; }
.scroll .grid td { border: 1px solid rgba(128, 128, 128, 0.2) !important; }
.grid th { padding: 0 6px 0 0; font-weight: normal; line-height: 1.1rem; }
.grid th:first-child { position: sticky; left: 0; background: var(--block-background-fill, white); }
.grid th.top { padding: 0 0 4px; writing-mode: vertical-rl; vertical-align: bottom; text-align: end; }
"""


class BadInputError(ValueError):
    """What a visitor typed cannot be used; the message is shown to them."""


@dataclass
class Subject:
    """A model on the page.

    Attributes:
        kind: `fill-mask`, `tagging` or `classification`. window: the most tokens it reads at once.
    """

    name: str
    kind: str
    model: Any
    tokenizer: Any
    window: int


def load_subject(source: str, *, trust_remote_code: bool = False) -> Subject:
    """A model of a folder or the Hub, by the head that it was saved with.

    Raises:
        ValueError: it has a head that the page has no view for.
    """
    import transformers

    config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    own = (config.architectures or [""])[0]
    ending = next((ending for ending in _KINDS if own.endswith(ending)), None)
    if ending is None:
        raise ValueError(
            f"{source} holds a {own or 'model without a head'}; the page shows {', '.join(_KINDS.values())}"
        )
    # Only eager attention can be looked at.
    model = getattr(transformers, f"AutoModel{ending}").from_pretrained(
        source, trust_remote_code=trust_remote_code, attn_implementation="eager", dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    if ending == "ForMaskedLM" and tokenizer.mask_token is None:
        raise ValueError(f"the tokenizer of {source} has no mask token, so there is no blank to fill")
    window = min(_LONGEST, tokenizer.model_max_length, config.max_position_embeddings - 2)
    return Subject(source.rstrip("/").split("/")[-1], _KINDS[ending], model.eval(), tokenizer, window)


def windows_of(subject: Subject, text: str) -> list[dict[str, Any]]:
    """A text as the model reads it: input_ids and offsets of overlapping windows, each as long as the model takes.

    Raises:
        BadInputError: there is nothing to read, or too much.
    """
    if not text or not text.strip():
        raise BadInputError("Type some text first.")
    if len(text) > MAX_CHARACTERS:
        raise BadInputError(f"The text has {len(text):,} characters; this page reads up to {MAX_CHARACTERS:,}.")
    batch = subject.tokenizer(
        text,
        truncation=True,
        max_length=subject.window,
        stride=subject.window // 4,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    windows = [
        {"input_ids": ids, "offsets": offsets, "special": special}
        for ids, offsets, special in zip(
            batch["input_ids"], batch["offset_mapping"], batch["special_tokens_mask"], strict=True
        )
    ]
    if all(all(window["special"]) for window in windows):
        raise BadInputError("The model's tokenizer finds no token in this text.")
    return windows


@torch.no_grad()
def _logits(subject: Subject, window: dict[str, Any]) -> torch.Tensor:
    return subject.model(input_ids=torch.tensor([window["input_ids"]])).logits[0]


def _probabilities(subject: Subject, logits: torch.Tensor) -> torch.Tensor:
    is_multi = getattr(subject.model.config, "problem_type", None) == "multi_label_classification"
    return logits.sigmoid() if is_multi else logits.softmax(-1)


def fill_mask(subject: Subject, text: str) -> list[list[tuple[str, float]]]:
    """For each blank, the likeliest words and their probabilities.

    Raises:
        BadInputError: the text has no blank.
    """
    mask = subject.tokenizer.mask_token
    if text and text.strip() and mask not in text:
        raise BadInputError(f"Put {mask} where a word is missing.")
    best: dict[int, tuple[int, torch.Tensor]] = {}
    for window in windows_of(subject, text):
        logits = None
        for position, token in enumerate(window["input_ids"]):
            if token != subject.tokenizer.mask_token_id:
                continue
            logits = _logits(subject, window) if logits is None else logits
            # Of two windows, the one in which the blank has more around it.
            room = min(position, len(window["input_ids"]) - 1 - position)
            start = window["offsets"][position][0]
            if start not in best or room > best[start][0]:
                best[start] = (room, logits[position].softmax(-1))
    answers = []
    for start in sorted(best):
        probabilities, ids = best[start][1].topk(min(_TOP, best[start][1].numel()))
        words = [subject.tokenizer.decode([i]).strip() or repr(subject.tokenizer.decode([i])) for i in ids.tolist()]
        answers.append(list(zip(words, probabilities.tolist(), strict=True)))
    return answers


def tag(subject: Subject, text: str) -> list[tuple[str, str | None]]:
    """The text in pieces, each with the label of its span, or None outside."""
    labels = subject.model.config.id2label
    best: dict[tuple[int, int], tuple[int, str]] = {}
    for window in windows_of(subject, text):
        predicted = _logits(subject, window).argmax(-1).tolist()
        for position, (start, end) in enumerate(window["offsets"]):
            if window["special"][position] or end <= start:
                continue
            room = min(position, len(predicted) - 1 - position)
            if (start, end) not in best or room > best[start, end][0]:
                best[start, end] = (room, labels[predicted[position]])
    spans: list[list[Any]] = []  # [start, end, label]
    previous = None
    for (start, end), (_, label) in sorted(best.items()):
        prefix, _, name = label.rpartition("-")
        is_inside_word = previous is not None and start == previous and text[start - 1 : start + 1].isalnum()
        if spans and is_inside_word and spans[-1][1] == previous:
            spans[-1][1] = end  # a word has the label of its first piece
        elif label != "O" and not (is_inside_word and not spans):
            joins = spans and spans[-1][2] == name and prefix == "I" and not text[spans[-1][1] : start].strip()
            if joins:
                spans[-1][1] = end
            else:
                spans.append([start, end, name])
        previous = end
    pieces: list[tuple[str, str | None]] = []
    at = 0
    for start, end, name in spans:
        pieces += [(text[at:start], None)] if start > at else []
        pieces.append((text[start:end], name))
        at = end
    return [*pieces, (text[at:], None)] if at < len(text) else pieces


def classify(subject: Subject, text: str) -> dict[str, float]:
    """Label -> probability (or value, of a model that gives one number), the mean over the windows of a long text."""
    windows = windows_of(subject, text)
    logits = torch.stack([_logits(subject, window) for window in windows])
    if logits.shape[-1] == 1:
        return {subject.model.config.id2label[0]: float(logits.mean())}
    mean = _probabilities(subject, logits).mean(0)
    return {subject.model.config.id2label[index]: float(value) for index, value in enumerate(mean)}


@torch.no_grad()
def attention(subject: Subject, text: str, layer: int, head: int) -> tuple[list[str], torch.Tensor]:
    """The first tokens of a text, and how much each (row) looks at each (column) in one head of one layer.

    Raises:
        BadInputError: there is no such layer or head.
    """
    config = subject.model.config
    for name, value, number in (("layer", layer, config.num_hidden_layers), ("head", head, config.num_attention_heads)):
        if not 1 <= int(value) <= number:
            raise BadInputError(f"There is no {name} {value}: the model has {number}.")
    ids = windows_of(subject, text)[0]["input_ids"][:_SHOWN]
    found = subject.model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
    tokens = subject.tokenizer.convert_ids_to_tokens(ids)
    return tokens, found[int(layer) - 1][0, int(head) - 1]


def draw_attention(tokens: list[str], weights_TT: torch.Tensor) -> str:
    """A table whose cells are the darker the more the row's token looks at the column's; a cell's number shows where
    the pointer rests.
    """
    names = [html.escape(token) for token in tokens]
    darkest = max(float(weights_TT.max()), 1e-9)
    top = "".join(f'<th class="top">{name}</th>' for name in names)
    rows = []
    for name, weights in zip(names, weights_TT.tolist(), strict=True):
        cells = "".join(
            f'<td style="background: rgba(37, 99, 235, {weight / darkest:.3f})" '
            f'title="{name} → {other}: {weight:.3f}"></td>'
            for other, weight in zip(names, weights, strict=True)
        )
        rows.append(f"<tr><th>{name}</th>{cells}</tr>")
    return f'<div class="scroll"><table class="grid"><tr><th></th>{top}</tr>{"".join(rows)}</table></div>'


def draw_blanks(answers: list[list[tuple[str, float]]]) -> str:
    """A table of the likeliest words for each blank."""
    tables = []
    for number, words in enumerate(answers, start=1):
        rows = "".join(
            f"<tr><td><b>{html.escape(word)}</b></td><td>{probability:.1%}</td></tr>" for word, probability in words
        )
        heading = f"<tr><th>Blank {number}</th><th></th></tr>" if len(answers) > 1 else ""
        tables.append(f"<table>{heading}{rows}</table>")
    return f'<div class="scroll">{"<br>".join(tables)}</div>'


def _said(answer: Callable[[], Any], empty: Any) -> tuple[Any, str]:
    """An answer and no message, or nothing and what is wrong with the input."""
    try:
        return answer(), ""
    except BadInputError as error:
        return empty, f"⚠️ {error}"


def build_page(subjects: list[Subject]) -> Any:
    """The page: a tab for each model, with its view and its attention."""
    import gradio as gr

    title = " · ".join(subject.name for subject in subjects)
    with gr.Blocks(title=title, analytics_enabled=False) as page, gr.Tabs():
        for subject in subjects:
            with gr.Tab(f"{subject.name}: {subject.kind}"):
                _build_view(gr, subject)
    return page


def _build_view(gr: Any, subject: Subject) -> None:
    example = EXAMPLES[subject.kind].format(mask=subject.tokenizer.mask_token)
    text = gr.Textbox(example, lines=4, label="Text", elem_id=f"text-{subject.kind}")
    button = gr.Button("Run", variant="primary", elem_id=f"run-{subject.kind}")
    message = gr.Markdown(elem_id=f"message-{subject.kind}")
    output: Any
    run: Callable[[str], tuple[Any, str]]
    if subject.kind == "fill-mask":
        output = gr.HTML(label="Words", elem_id="words")

        def run(given: str) -> tuple[Any, str]:
            return _said(lambda: draw_blanks(fill_mask(subject, given)), "")

    elif subject.kind == "tagging":
        output = gr.HighlightedText(label="Spans", elem_id="spans", show_legend=True)

        def run(given: str) -> tuple[Any, str]:
            return _said(lambda: tag(subject, given), [])

    else:
        output = gr.Label(label="Scores", elem_id="scores", num_top_classes=10)

        def run(given: str) -> tuple[Any, str]:
            return _said(lambda: classify(subject, given), None)

    gr.on([button.click, text.submit], run, text, [output, message])
    with gr.Accordion("Attention", open=True):
        config = subject.model.config
        with gr.Row():
            layer = gr.Slider(1, config.num_hidden_layers, value=1, step=1, label="Layer")
            head = gr.Slider(1, config.num_attention_heads, value=1, step=1, label="Head")
        gr.Markdown(f"How much each token (row) looks at each other (column); the first {_SHOWN} tokens.")
        picture = gr.HTML(elem_id=f"attention-{subject.kind}")

        def look(given: str, layer: int, head: int) -> str:
            # What is wrong with the text, the view above says.
            return _said(lambda: draw_attention(*attention(subject, given, layer, head)), "")[0]

        # Of the many values that a slider takes while it is moved, the last one counts.
        gr.on(
            [button.click, text.submit, layer.change, head.change], look, [text, layer, head], picture,
            trigger_mode="always_last",
        )  # fmt: skip


if __name__ == "__main__":
    # In a Space: the models of this list, whose code the person who made the Space trusts.
    MODELS: list[str] = []
    build_page([load_subject(name, trust_remote_code=True) for name in MODELS]).launch(css=STYLE)
