"""A page to try a model on: fill in masks, tag, classify, and see its attention.

This file needs transformers and gradio only: it is also the `app.py` of a Space.
"""

import html
import json
import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

MAX_CHARACTERS = 20_000
MAX_BODY = 1_000_000  # bytes of a request; a text of MAX_CHARACTERS takes at most 240,000 bytes as JSON
_LONGEST, _MOST_SPECIAL, _SHOWN, _TOP = 512, 4, 40, 5
EXAMPLES = {
    "fill-mask": "The capital of France is {mask}.",
    "tagging": "Marie Curie was born in Warsaw and worked in Paris.",
    "classification": "A quiet film that stays with you for days.",
}
PAIR = ("A quiet film that stays with you for days.", "You will think about this film for a while.")
_KINDS = {
    "ForMaskedLM": "fill-mask",
    "ForTokenClassification": "tagging",
    "ForSequenceClassification": "classification",
}
_MOST_LABELS, _MOST_SCORES = 12, 10
# Scripts without spaces between words, in which any character may begin a word.
_NO_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
# Two columns of a table do not fit on a phone: wide content scrolls inside its own frame, and its names stay visible.
# Long labels are wrapped.
STYLE = """
.scroll { overflow-x: auto; max-width: 100%; }
.scroll table, .scroll tr, .scroll th, .scroll td { border: none !important; }
.scroll table { border-collapse: collapse; font-size: 0.85rem; width: auto; }
.scroll td, .scroll th { padding: 2px 12px 2px 0; white-space: nowrap; text-align: left; }
.scroll .scores td.label { white-space: normal; overflow-wrap: anywhere; }
.scroll .scores td.bars { width: 8rem; min-width: 5rem; } #spans * { word-break: normal; overflow-wrap: break-word; }
code { font-size: 0.875em; white-space: normal; overflow-wrap: anywhere; }
.scores .bar { height: 0.6rem; min-width: 1px; background: rgb(37, 99, 235); border-radius: 2px; }
.grid td { width: 1.1rem; min-width: 1.1rem; height: 1.1rem; padding: 0; }
.scroll .grid td { border: 1px solid rgba(128, 128, 128, 0.2) !important; }
.grid th { padding: 0 6px 0 0; font-weight: normal; line-height: 1.1rem; }
.grid th:first-child { position: sticky; left: 0; background: var(--block-background-fill, white); }
.grid th.top { padding: 0 0 4px; writing-mode: vertical-rl; vertical-align: bottom; text-align: end; }
"""


class BadInputError(ValueError):
    """The visitor's input cannot be used; the message is shown to them."""


@dataclass
class Subject:
    """A model on the page.

    Attributes:
        kind: `fill-mask`, `tagging` or `classification`. window: the most tokens that it takes at once.
        takes_pairs: its input is two texts, which the visitor writes on two lines.
        overlap: tokens that neighbouring windows share.
    """

    name: str
    kind: str
    model: Any
    tokenizer: Any
    window: int
    takes_pairs: bool = False
    overlap: int = 0


def load_subject(source: str, *, name: str | None = None, trust_remote_code: bool = False) -> Subject:
    """Load a model from a folder or the Hub; its saved head decides the view.

    Args:
        name: the title of its view; None: the last part of `source`.

    Raises:
        ValueError: the page has no view for its head.
    """
    import transformers

    trusted = {"trust_remote_code": trust_remote_code}
    config = transformers.AutoConfig.from_pretrained(source, **trusted)
    own = (config.architectures or [""])[0]
    ending = next((ending for ending in _KINDS if own.endswith(ending)), None)
    if ending is None:
        has = own or "model without a head"
        raise ValueError(f"{source} holds a {has}; the page shows {', '.join(_KINDS.values())}")
    # Only eager attention returns its weights.
    options = {"attn_implementation": "eager", "use_safetensors": True, "dtype": torch.float32, "return_dict": True}
    model = getattr(transformers, f"AutoModel{ending}").from_pretrained(source, **options, **trusted)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **trusted)
    if ending == "ForMaskedLM" and tokenizer.mask_token is None:
        raise ValueError(f"the tokenizer of {source} has no mask token, so there is no blank to fill")
    settings, stated = _settings_of(source), tokenizer.model_max_length
    positions = getattr(config, "max_position_embeddings", None) or 0  # XLNet has -1, T5 none
    longest = max(1, positions - 2) if 0 < positions < stated else stated  # RoBERTa counts from its padding id
    window = min(longest, settings.get("max_seq_length") or _LONGEST)
    takes_pairs = getattr(config, "compare_pairs", False) or settings.get("text_pair_column") is not None
    overlap = 0 if _KINDS[ending] == "classification" else window // 4
    overlap = min(window // 2, settings.get("window_overlap", overlap))  # the run's own windows may be longer
    return Subject(name or Path(source).name, _KINDS[ending], model.eval(), tokenizer, window, takes_pairs, overlap)


def _settings_of(source: str) -> dict[str, Any]:
    """What a model's fine-tuning run saved; nothing if it is not one of ours."""
    import transformers

    try:
        path = transformers.utils.cached_file(source, "finetuning_settings.json")
        settings = dict(json.loads(Path(str(path)).read_text(encoding="utf-8")))
        return {name: value for name, value in settings.items() if name == "text_pair_column" or type(value) is int}
    except (OSError, ValueError, TypeError):
        return {}


def texts_of(subject: Subject, text: str) -> list[str]:
    """The text or, if the model takes pairs, the two texts.

    Raises:
        BadInputError: the text is empty or too long, or there are not two.
    """
    if not text or not text.strip():
        raise BadInputError("Type some text first.")
    if len(text) > MAX_CHARACTERS:
        raise BadInputError(f"The text has {len(text):,} characters; this page reads up to {MAX_CHARACTERS:,}.")
    if not subject.takes_pairs:
        return [text]
    texts = [line.strip() for line in text.split("\n") if line.strip()]
    if len(texts) != 2:
        raise BadInputError("Write two texts, each on one line.")
    return texts


def windows_of(subject: Subject, text: str) -> list[dict[str, Any]]:
    """The overlapping windows of a text, each as long as the model takes: input_ids, offsets and so on.

    Of a pair, each window holds the whole of the shorter text.

    Raises:
        BadInputError: see `texts_of`; both texts of a pair are long, or the tokenizer finds nothing.
    """
    texts = texts_of(subject, text)
    longer, shorter = "only_first", 0
    if len(texts) == 2:
        first, second = (len(ids) for ids in subject.tokenizer(texts, add_special_tokens=False)["input_ids"])
        if (shorter := min(first, second)) > subject.window // 2:
            raise BadInputError(f"Both texts are long: shorten one to {subject.window // 2} tokens or fewer.")
        longer = "only_first" if first >= second else "only_second"
    batch = subject.tokenizer(
        *texts,
        truncation=longer,
        max_length=subject.window,
        stride=max(0, min(subject.overlap, subject.window - shorter - _MOST_SPECIAL - 1)),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    windows = [
        {"input_ids": ids, "offsets": offsets, "special": special, "sides": batch.sequence_ids(number)}
        for number, (ids, offsets, special) in enumerate(
            zip(batch["input_ids"], batch["offset_mapping"], batch["special_tokens_mask"], strict=True)
        )
    ]
    if getattr(subject.model.config, "type_vocab_size", 0) > 1:
        for window, types in zip(windows, batch.get("token_type_ids", []), strict=False):
            window["token_type_ids"] = types
    if all(all(window["special"]) for window in windows):
        raise BadInputError("The model's tokenizer finds no token in this text.")
    return windows


@torch.no_grad()
def _logits(subject: Subject, window: dict[str, Any]) -> torch.Tensor:
    return subject.model(**_inputs(window)).logits[0]


def _inputs(window: dict[str, Any], longest: int | None = None) -> dict[str, torch.Tensor]:
    """The model's inputs: the first `longest` tokens of a window, or all."""
    return {name: torch.tensor([window[name][:longest]]) for name in ("input_ids", "token_type_ids") if name in window}


def fill_mask(subject: Subject, text: str) -> list[list[tuple[str, float]]]:
    """For each blank, the most probable words with their probabilities.

    Raises:
        BadInputError: the text has no blank.
    """
    mask = subject.tokenizer.mask_token
    if text and text.strip() and mask not in text:
        raise BadInputError(f"Put {mask} where a word is missing.")
    best: dict[int, tuple[int, list[float], list[int]]] = {}
    for window in windows_of(subject, text):
        places = [place for place, token in enumerate(window["input_ids"]) if token == subject.tokenizer.mask_token_id]
        if not places:
            continue
        # Only the best are kept: the probabilities of all words for thousands of blanks would fill the memory.
        probabilities_MV = _logits(subject, window)[places].softmax(-1)
        found = probabilities_MV.topk(min(_TOP, probabilities_MV.shape[-1]))
        for place, values, ids in zip(places, found.values.tolist(), found.indices.tolist(), strict=True):
            # Of two windows, the one in which the blank has more context counts.
            room = min(place, len(window["input_ids"]) - 1 - place)
            start = window["offsets"][place][0]
            if start not in best or room > best[start][0]:
                best[start] = (room, values, ids)
    return [_as_words(subject, *best[start][1:]) for start in sorted(best)]


def _as_words(subject: Subject, values: list[float], ids: list[int]) -> list[tuple[str, float]]:
    tokens = [subject.tokenizer.decode([i]) for i in ids]
    return [(token.strip() or repr(token), value) for token, value in zip(tokens, values, strict=True)]


def tag(subject: Subject, text: str) -> list[tuple[str, str | None]]:
    """The text in pieces, each with the label of its span; None outside of spans."""
    pieces: list[tuple[str, str | None]] = []
    at = 0
    for start, end, name in _spans(text, _words(text, _labelled_tokens(subject, text))):
        if start > at:
            pieces.append((text[at:start], None))
        pieces.append((text[start:end], name))
        at = end
    return [*pieces, (text[at:], None)] if at < len(text) else pieces


def _labelled_tokens(subject: Subject, text: str) -> list[tuple[int, int, str]]:
    """(start, end, label) of each token, from the window in which it has the most context."""
    labels = subject.model.config.id2label
    best: dict[tuple[int, int], tuple[int, str]] = {}
    for window in windows_of(subject, text):
        predicted, seen = _logits(subject, window).argmax(-1).tolist(), set()
        for position, (start, end) in enumerate(window["offsets"]):
            # In some windows a token includes the space before it.
            start += len(text[start:end]) - len(text[start:end].lstrip())
            # One character may be several tokens. The first one counts, as in a word.
            if window["special"][position] or end <= start or (start, end) in seen:
                continue
            seen.add((start, end))
            room = min(position, len(predicted) - 1 - position)
            if (start, end) not in best or room > best[start, end][0]:
                best[start, end] = (room, labels[predicted[position]])
    return [(*place, label) for place, (_, label) in sorted(best.items())]


def _spans(text: str, words: Iterable[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """(start, end, name) of the entities that labelled words form."""
    spans: list[tuple[int, int, str]] = []
    for start, end, label in words:
        if label == "O":
            continue
        prefix, name = (label[0], label[2:]) if label[:2] in ("B-", "I-") else ("", label)
        if spans and prefix == "I" and spans[-1][2] == name and not text[spans[-1][1] : start].strip():
            spans[-1] = (spans[-1][0], end, name)
        else:
            spans.append((start, end, name))
    return spans


def _words(text: str, pieces: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """(start, end, label) of the words that pieces form; a word has the label of its first piece.

    A piece of bytes may begin within the last character of the piece before it. Marks belong to the character before
    them; some tokenizers drop them, so that no piece holds them.
    """
    words: list[tuple[int, int, str]] = []
    for start, end, label in pieces:
        while end < len(text) and _is_mark(text[end]):
            end += 1
        before = words[-1][1] if words else -1
        if start < before or (start == before and _is_inside_word(text, start)):
            words[-1] = (words[-1][0], max(before, end), words[-1][2])
        else:
            words.append((start, end, label))
    return words


def _is_inside_word(text: str, at: int) -> bool:
    """Whether the characters before and after a position belong to one word."""
    around = text[at - 1 : at + 1]
    return not _NO_SPACES.search(around) and all(
        unicodedata.category(c)[0] in "LN" or c == "_" or _is_mark(c) for c in around
    )


def _is_mark(character: str) -> bool:
    """Whether a character belongs to the one before it: an accent, a vowel sign, a joiner."""
    category = unicodedata.category(character)
    return category[0] == "M" or category == "Cf"


def classify(subject: Subject, text: str) -> dict[str, float]:
    """Label -> probability, or value for a regression; for a long text by the mean logits of its windows."""
    logits = torch.stack([_logits(subject, window) for window in windows_of(subject, text)]).mean(0)
    kind = getattr(subject.model.config, "problem_type", None)
    if kind == "multi_label_classification":
        logits = logits.sigmoid()
    elif kind == "single_label_classification" or (kind is None and logits.shape[-1] > 1):
        logits = logits.softmax(-1)
    return {subject.model.config.id2label[index]: float(value) for index, value in enumerate(logits)}


@torch.no_grad()
def attention(subject: Subject, text: str, layer: int, head: int) -> tuple[list[str], torch.Tensor]:
    """The first tokens of a text, as written in it, and how much each (row) attends to each (column) in one head.

    Raises:
        BadInputError: there is no such layer or head.
    """
    config = subject.model.config
    heads = getattr(config, "num_attention_heads", 1)  # FNet has none
    for name, value, number in (("layer", layer, config.num_hidden_layers), ("head", head, heads)):
        if not isinstance(value, (int, float)) or not 1 <= value <= number:
            raise BadInputError(f"There is no {name} {value}: the model has {number}.")
    texts, window = texts_of(subject, text), windows_of(subject, text)[0]
    tokens = subject.tokenizer.convert_ids_to_tokens(window["input_ids"][:_SHOWN])
    found = (subject.model(**_inputs(window, _SHOWN), output_attentions=True).attentions or [None])[int(layer) - 1 :]
    if not found or getattr(found[0], "shape", ())[-2:] != (len(tokens), len(tokens)):
        raise BadInputError("This model does not show whom its tokens attend to.")
    names = []
    for token, side, (start, end) in zip(tokens, window["sides"], window["offsets"], strict=False):
        piece = "" if side is None else texts[side][start:end]
        names.append(token if side is None else piece.strip() or repr(piece or " "))
    return names, found[0][0, int(head) - 1]


def draw_attention(tokens: list[str], weights_TT: torch.Tensor) -> str:
    """An HTML table: the darker a cell, the more the row's token attends to the column's. Hovering shows the number."""
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
    """An HTML table of the most probable words for each blank."""
    tables = []
    for number, words in enumerate(answers, start=1):
        rows = "".join(
            f"<tr><td><b>{html.escape(word)}</b></td><td>{probability:.1%}</td></tr>" for word, probability in words
        )
        heading = f"<tr><th>Blank {number}</th><th></th></tr>" if len(answers) > 1 else ""
        tables.append(f"<table>{heading}{rows}</table>")
    return f'<div class="scroll">{"<br>".join(tables)}</div>'


def draw_scores(scores: dict[str, float]) -> str:
    """An HTML table of the highest scores; probabilities have a bar."""
    are_shares = len(scores) > 1 and all(0 <= score <= 1 for score in scores.values())
    rows = []
    for label, score in sorted(scores.items(), key=lambda item: -item[1])[:_MOST_SCORES]:
        bar = f'<div class="bar" style="width: {score:.1%}"></div>' if are_shares else ""
        shown = f"{score:.1%}" if are_shares else f"{score:.4g}"
        rows.append(
            f'<tr><td class="label">{html.escape(str(label))}</td><td class="bars">{bar}</td><td>{shown}</td></tr>'
        )
    return f'<div class="scroll"><table class="scores">{"".join(rows)}</table></div>'


def describe(subject: Subject) -> str:
    """A heading and what the model does, as HTML; names and labels are escaped, since they are not trusted."""
    names = [str(name) for name in subject.model.config.id2label.values()]
    kinds = list(dict.fromkeys(name[2:] if name[:2] in ("B-", "I-") else name for name in names if name != "O"))
    listed = ", ".join(_code(name) for name in kinds[:_MOST_LABELS])
    listed += f" and {len(kinds) - _MOST_LABELS} more" if len(kinds) > _MOST_LABELS else ""
    does = {
        "fill-mask": f"This model fills in blanks: put {_code(subject.tokenizer.mask_token)} where a word is missing.",
        "tagging": f"This model marks words and spans in a text as {listed}.",
        "classification": f"This model gives {'two texts' if subject.takes_pairs else 'a text'} scores for {listed}.",
    }[subject.kind]
    parameters = sum(parameter.numel() for parameter in subject.model.parameters())
    size = f"It has {parameters:,} parameters and reads {subject.window:,} tokens at a time, longer texts in parts."
    return f"<h1>{html.escape(subject.name)}</h1><p>{does} {size}</p>"


def _code(text: str) -> str:
    return f"<code>{html.escape(text)}</code>"


def _said(answer: Callable[[], Any], empty: Any) -> tuple[Any, str]:
    """The answer and no message, or `empty` and what is wrong with the input, as HTML."""
    try:
        return answer(), ""
    except BadInputError as error:
        return empty, f"<p>⚠️ {html.escape(str(error))}</p>"


class SmallRequests:
    """ASGI middleware that rejects requests with too large a body before the server reads them into memory."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on if it is small."""
        from starlette.exceptions import HTTPException

        length = dict(scope.get("headers") or []).get(b"content-length", b"0")
        if scope["type"] == "http" and not (length.isdigit() and int(length) <= MAX_BODY):
            await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        taken = 0

        async def receive_little() -> Any:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body") or b"")
            if taken > MAX_BODY:  # the request did not give its length
                raise HTTPException(413)
            return message

        await self.app(scope, receive_little if scope["type"] == "http" else receive, send)


def serve(subjects: list[Subject], **options: Any) -> None:
    """Serve the page until the program ends.

    Args:
        options: options of gradio's `launch`, such as server_name and server_port.
    """
    from starlette.middleware import Middleware

    build_page(subjects).launch(css=STYLE, app_kwargs={"middleware": [Middleware(SmallRequests)]}, **options)


def build_page(subjects: list[Subject]) -> Any:
    """The page: a tab for each model, with its description, its view and its attention."""
    import gradio as gr

    title = " · ".join(subject.name for subject in subjects)
    with gr.Blocks(title=title, analytics_enabled=False) as page, gr.Tabs():
        for subject in subjects:
            with gr.Tab(f"{subject.name}: {subject.kind}"):
                _build_view(gr, subject)
    return page


def _build_view(gr: Any, subject: Subject) -> None:
    example = EXAMPLES[subject.kind].format(mask=subject.tokenizer.mask_token)
    example = "\n".join(PAIR) if subject.takes_pairs else example
    gr.HTML(describe(subject))
    label = "Two texts, each on one line" if subject.takes_pairs else "Text"
    text = gr.Textbox(example, lines=4, label=label, elem_id=f"text-{subject.kind}")
    button = gr.Button("Run", variant="primary", elem_id=f"run-{subject.kind}")
    message = gr.HTML(elem_id=f"message-{subject.kind}")
    answer: Callable[[str], Any] = {
        "fill-mask": lambda given: draw_blanks(fill_mask(subject, given)),
        "tagging": lambda given: tag(subject, given),
        "classification": lambda given: draw_scores(classify(subject, given)),
    }[subject.kind]
    nothing: Any = [] if subject.kind == "tagging" else ""
    # The answer to the example is shown before anything is pressed.
    first, _ = _said(lambda: answer(example), nothing)
    output: Any
    if subject.kind == "tagging":
        output = gr.HighlightedText(first, label="Spans", elem_id="spans", show_legend=True)
    else:
        output = gr.HTML(first, elem_id="words" if subject.kind == "fill-mask" else "scores")

    def run(given: str) -> tuple[Any, str]:
        return _said(lambda: answer(given), nothing)

    gr.on([button.click, text.submit], run, text, [output, message])
    with gr.Accordion("Attention", open=True):
        config = subject.model.config
        with gr.Row():
            layer = gr.Slider(1, config.num_hidden_layers, value=1, step=1, label="Layer")
            head = gr.Slider(1, getattr(config, "num_attention_heads", 1), value=1, step=1, label="Head")
        gr.Markdown(f"How much each token (row) attends to each other (column); the first {_SHOWN} tokens.")

        def look(given: str, layer: int, head: int) -> str:
            return "".join(_said(lambda: draw_attention(*attention(subject, given, layer, head)), ""))

        picture = gr.HTML(look(example, 1, 1), elem_id=f"attention-{subject.kind}")
        # A moving slider takes many values; only the last one counts.
        gr.on(
            [button.click, text.submit, layer.change, head.change], look, [text, layer, head], picture,
            trigger_mode="always_last",
        )  # fmt: skip


if __name__ == "__main__":
    # In a Space: the models to show. Whoever made the Space trusts their code.
    MODELS: list[str] = []
    serve([load_subject(name, trust_remote_code=True) for name in MODELS])
