"""The demo page: what each view answers, bad input, long texts, and the page itself in a browser."""

import html
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import types
import urllib.request
from pathlib import Path

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from saved_models import make_model, make_tokenizer, save

from clozebert.hub.demo_page import (
    BadInputError,
    Subject,
    attention,
    classify,
    describe,
    draw_attention,
    draw_blanks,
    draw_scores,
    fill_mask,
    load_subject,
    tag,
    windows_of,
)
from clozebert.hub.space import write_space
from clozebert.scripts.demo_app import _check_port
from clozebert.utils.errors import UserError

LONG = " ".join(["the river is long , stone"] * 30)
REPOSITORY = Path(__file__).parents[2]


def subject(head, **changes):
    kinds = {
        "ForMaskedLM": "fill-mask",
        "ForTokenClassification": "tagging",
        "ForSequenceClassification": "classification",
    }
    model = make_model(head, **changes)
    model.set_attn_implementation("eager")
    return Subject("tiny", kinds[head], model, make_tokenizer(), 39)


class TaggedBy(torch.nn.Module):
    """Gives each token id the label that a table says."""

    def __init__(self, table, labels):
        super().__init__()
        self.table = table
        self.config = type("Config", (), {"id2label": dict(enumerate(labels))})

    def forward(self, input_ids):
        labels = list(self.config.id2label.values())
        wanted = torch.tensor([[labels.index(self.table.get(i, "O")) for i in row] for row in input_ids.tolist()])
        return type("Output", (), {"logits": torch.nn.functional.one_hot(wanted, len(labels)).float()})


def tagged(text, table):
    tokenizer = make_tokenizer()
    ids = {tokenizer.convert_tokens_to_ids(word): label for word, label in table.items()}
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    return tag(Subject("t", "tagging", TaggedBy(ids, labels), tokenizer, 39), text)


def test_fill_mask_is_the_models_softmax():
    tested = subject("ForMaskedLM")
    answers = fill_mask(tested, "the [MASK] is [MASK]")
    ids = tested.tokenizer("the [MASK] is [MASK]", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected = tested.model(input_ids=ids).logits[0].softmax(-1)
    assert len(answers) == 2
    for answer, position in zip(answers, (2, 4), strict=True):
        values, indices = expected[position].topk(5)
        assert [word for word, _ in answer] == [tested.tokenizer.decode([i]) for i in indices.tolist()]
        assert torch.allclose(torch.tensor([p for _, p in answer]), values)


def test_spans_are_merged_words_and_lose_no_text():
    text = "The river stone, of the long long place."
    found = tagged(text, {"river": "B-PER", "stone": "I-PER", "long": "B-LOC"})
    assert "".join(piece for piece, _ in found) == text
    assert [piece for piece in found if piece[1]] == [("river stone", "PER"), ("long", "LOC"), ("long", "LOC")]


def test_tags_without_prefixes():
    labels = {"river": "B-PER", "stone": "B-PER"}
    assert tagged("a river a stone", labels)[1::2] == [("river", "PER"), ("stone", "PER")]
    assert tagged("a b c", labels) == [("a b c", None)]


class TaggedAtRandom(torch.nn.Module):
    """Gives each token any label; the config is a token classifier's."""

    def __init__(self, labels, seed):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.config = type("Config", (), {"id2label": dict(enumerate(labels))})

    def forward(self, input_ids):
        shape = (*input_ids.shape, len(self.config.id2label))
        return type("Output", (), {"logits": torch.rand(shape, generator=self.generator)})


@pytest.fixture(scope="module")
def pieces():
    """Tokenizers that cut most words into pieces."""
    from clozebert.corpus.tokenizer import train_tokenizer

    text = ["the river stone of a long place", "rivers, stones and places: longer ones", "Zürich und Genève"] * 20
    return {
        name: train_tokenizer(iter(text), algorithm=name, vocab_size=size, model_max_length=64)
        for name, size in (("wordpiece", 140), ("bpe", 280), ("unigram", 400))
    }


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
@pytest.mark.parametrize("seed", range(5))
def test_no_span_begins_or_ends_within_a_word(algorithm, seed, pieces):
    labels = ["O", "O", "B-PER", "I-PER", "B-creative-work", "I-creative-work"]
    text = f"Unbelievable rivers, stony places of Zürich; antidisestablishmentarian stonemasons! {LONG}"
    page = Subject("t", "tagging", TaggedAtRandom(labels, seed), pieces[algorithm], 39)
    found, at = tag(page, text), 0
    assert "".join(piece for piece, _ in found) == text
    spans = []
    for piece, label in found:
        if label is not None:
            spans.append((at, at + len(piece), label))
        at += len(piece)
    assert len(spans) > 5
    assert {label for _, _, label in spans} == {"PER", "creative-work"}
    for start, end, _ in spans:
        assert not text[max(0, start - 1) : start + 1].isalnum() or start == 0, text[start - 3 : end]
        assert not text[end - 1 : end + 1].isalnum() or end == len(text), text[start : end + 3]
        assert text[start:end] == text[start:end].strip()


@pytest.mark.parametrize("algorithm", ["bpe", "wordpiece"])
def test_marks_and_split_bytes_belong_to_their_word(algorithm):
    """Bytes of two letters may make one token, and a lower-casing WordPiece drops accents and vowel signs."""
    from clozebert.corpus.tokenizer import train_tokenizer

    text = "السلام عليكم كيف حالُكَ नमस्ते दुनिया cafe\u0301 می\u200cروم snake_case"
    tokenizer = train_tokenizer([text] * 9, algorithm=algorithm, vocab_size=310, lowercase=algorithm == "wordpiece")
    labels = [f"B-{number}" for number in range(9)]
    for seed in range(5):
        found = tag(Subject("t", "tagging", TaggedAtRandom(labels, seed), tokenizer, 99), text)
        assert [piece for piece, _ in found if piece != " "] == text.split()


def test_characters_may_be_words_where_no_spaces_are_written():
    tokenizer = make_tokenizer()
    characters = __import__("tokenizers").pre_tokenizers.Split("", "isolated")
    tokenizer.backend_tokenizer.pre_tokenizer = characters
    tokenizer.add_tokens(["東", "京", "は"])
    table = {tokenizer.convert_tokens_to_ids(word): label for word, label in {"東": "B-LOC", "京": "I-LOC"}.items()}
    page = Subject("t", "tagging", TaggedBy(table, ["O", "B-LOC", "I-LOC"]), tokenizer, 39)
    assert tag(page, "は東京は") == [("は", None), ("東京", "LOC"), ("は", None)]


def test_long_texts_are_windowed_and_nothing_is_cut():
    tested = subject("ForTokenClassification")
    windows = windows_of(tested, LONG)
    assert len(windows) > 3
    assert {offset for window in windows for offset in window["offsets"] if offset != (0, 0)} >= {
        (match.start(), match.end()) for match in re.finditer(r"\w+|,", LONG)
    }
    assert "".join(piece for piece, _ in tag(tested, LONG)) == LONG
    assert sum(classify(subject("ForSequenceClassification"), LONG).values()) == pytest.approx(1)
    blanks = fill_mask(subject("ForMaskedLM"), f"{LONG} [MASK] {LONG} [MASK]")
    assert len(blanks) == 2


def test_window_with_more_context_decides():
    tested = subject("ForMaskedLM")
    text = f"{LONG} [MASK] {LONG}"
    answer = fill_mask(tested, text)[0]
    at = text.index("[MASK]")
    rooms = []
    for window in windows_of(tested, text):
        for position, (start, _) in enumerate(window["offsets"]):
            if start == at and window["input_ids"][position] == 4:
                rooms.append((min(position, len(window["input_ids"]) - 1 - position), window, position))
    _, window, position = max(rooms, key=lambda room: room[0])
    with torch.no_grad():
        expected = tested.model(input_ids=torch.tensor([window["input_ids"]])).logits[0, position].softmax(-1)
    assert answer[0][1] == pytest.approx(float(expected.max()))


def test_classification_of_one_number():
    assert set(classify(subject("ForSequenceClassification", num_labels=1), "the river")) == {"LABEL_0"}


@pytest.mark.parametrize(
    ("kind", "labels"),
    [("regression", 3), ("multi_label_classification", 1), ("multi_label_classification", 3), (None, 3), (None, 1),
     ("single_label_classification", 3)],
)  # fmt: skip
def test_what_classification_shows_is_what_the_pipeline_answers(kind, labels):
    tested = subject("ForSequenceClassification", num_labels=labels, problem_type=kind)
    run = transformers.pipeline("text-classification", model=tested.model, tokenizer=tested.tokenizer)
    # Of one output the pipeline gives a probability, whatever it was trained for, unless it was said to be a number.
    function = {"function_to_apply": "none"} if labels == 1 and kind is None else {}
    expected = {one["label"]: one["score"] for one in run("the river", top_k=None, **function)}
    assert classify(tested, "the river") == pytest.approx(expected)


@pytest.mark.parametrize("changes", [{"compare_pairs": True, "sep_token_id": 3}, {"type_vocab_size": 2}], ids=str)
def test_a_model_of_pairs_takes_two_lines(changes, tmp_path):
    """By its configuration or its settings; the answer is the pipeline's, and a long text becomes windows."""
    folder = save(tmp_path / "pairs", "ForSequenceClassification", **changes)
    if "compare_pairs" not in changes:
        assert not load_subject(str(folder)).takes_pairs
        (folder / "finetuning_settings.json").write_text('{"text_column": "a", "text_pair_column": "b"}')
    tested = load_subject(str(folder))
    assert tested.takes_pairs
    assert "gives two texts scores" in describe(tested)
    run = transformers.pipeline("text-classification", model=tested.model, tokenizer=tested.tokenizer)
    expected = {one["label"]: one["score"] for one in run({"text": "the river", "text_pair": "is long"}, top_k=None)}
    assert classify(tested, " the river\n\nis long ") == pytest.approx(expected)
    assert attention(tested, "the river\nis long", 1, 1)[0] == ["[CLS]", "the", "river", "[SEP]", "is", "long", "[SEP]"]
    windows = windows_of(tested, f"the river\n{LONG}")
    assert len(windows) > 1
    assert all(window["offsets"][1:3] == [(0, 3), (4, 9)] for window in windows)
    tested.window, tested.overlap = 39, 19  # as long as what is left beside the longest second text
    assert len(windows_of(tested, f"{LONG}\n{'a ' * 19}")) > 1
    for text, message in (("the river", "Write two texts"), ("a\nb\nc", "Write two"), (f"{LONG}\n{LONG}", "Both")):
        with pytest.raises(BadInputError, match=message):
            classify(tested, text)


def test_a_long_text_is_read_as_the_model_was_trained(tmp_path):
    """In the windows that its run saved; the classes' scores are averaged before they become probabilities."""
    folder = save(tmp_path / "m", "ForSequenceClassification", num_labels=3)
    tested = load_subject(str(folder))
    assert (tested.window, tested.overlap) == (41, 0), "all that the tokenizer states"
    (folder / "finetuning_settings.json").write_text('{"max_seq_length": 12, "window_overlap": 3}')
    tested = load_subject(str(folder))
    assert (tested.window, tested.overlap) == (12, 3)
    (folder / "finetuning_settings.json").write_text('{"max_seq_length": "12", "window_overlap": null}')
    assert load_subject(str(folder)).overlap == 0
    (folder / "finetuning_settings.json").write_text('{"max_seq_length": 8192, "window_overlap": 2048}')
    assert len(windows_of(load_subject(str(folder)), LONG)) > 1
    windows = windows_of(tested, LONG)
    assert {len(window["input_ids"]) for window in windows[:-1]} == {12}
    assert windows[0]["input_ids"][-4:-1] == windows[1]["input_ids"][1:4]
    with torch.no_grad():
        logits = [tested.model(torch.tensor([window["input_ids"]])).logits[0] for window in windows]
    wanted = torch.stack(logits).mean(0).softmax(-1)
    assert list(classify(tested, LONG).values()) == pytest.approx(wanted.tolist())


@pytest.mark.parametrize("shown", [None, (), (torch.zeros(1, 2, 4, 9),)], ids=["none", "empty", "of a window"])
def test_a_model_that_shows_no_attention_has_a_page_all_the_same(shown):
    tested = subject("ForMaskedLM")
    answers = types.SimpleNamespace(attentions=shown)
    tested.model.forward = lambda **inputs: answers
    with pytest.raises(BadInputError, match="does not show whom its tokens attend to"):
        attention(tested, "the river is long", 1, 1)


def test_attention_is_the_models_and_escaped():
    tested = subject("ForMaskedLM")
    tokens, weights = attention(tested, "the river is long", 2, 3)
    assert tokens == ["[CLS]", "the", "river", "is", "long", "[SEP]"]
    assert torch.allclose(weights.sum(-1), torch.ones(6))
    with torch.no_grad():
        ids = tested.tokenizer("the river is long", return_tensors="pt")["input_ids"]
        expected = tested.model(input_ids=ids, output_attentions=True).attentions[1][0, 2]
    assert torch.equal(weights, expected)
    assert attention(tested, "The (river", 1, 1)[0] == ["[CLS]", "The", "(", "river", "[SEP]"]
    drawn = draw_attention(["<script>", "b"], torch.eye(2))
    assert "<script>" not in drawn
    assert html.escape("<script>") in drawn
    assert "<b>&lt;i&gt;</b>" in draw_blanks([[("<i>", 0.5)]])


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
def test_attention_names_tokens_as_they_stand_in_the_text(algorithm, pieces):
    tokenizer = pieces[algorithm]
    tested = Subject("t", "fill-mask", make_model("ForMaskedLM", vocab_size=len(tokenizer)), tokenizer, 39)
    tested.model.set_attn_implementation("eager")
    names, _ = attention(tested, "the Zürich rivers", 1, 1)
    assert (names[0], names[-1]) == ("[CLS]", "[SEP]")
    assert "".join(name for name in names[1:-1] if not name.startswith("'")).replace(" ", "") in (
        "theZürichrivers", "theZüürichrivers",  # a character that is two tokens stands at both
    )  # fmt: skip
    assert not {"Ġ", "#", "▁"} & set("".join(names))


def test_what_the_page_says_of_a_model():
    said = describe(subject("ForSequenceClassification", id2label={0: "bad", 1: "so-so", 2: "good"}))
    model = make_model("ForSequenceClassification")
    assert said.startswith("<h1>tiny</h1>")
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in said
    assert "<code>bad</code>, <code>so-so</code>, <code>good</code>" in said
    labels = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-creative-work"}
    assert "as <code>PER</code>, <code>creative-work</code>." in describe(
        subject("ForTokenClassification", id2label=labels, num_labels=4)
    )
    assert "put <code>[MASK]</code> where" in describe(subject("ForMaskedLM"))


def test_scores_are_drawn_from_the_highest_on():
    drawn = draw_scores({"<low>": 0.25, "high": 0.75})
    assert re.findall(r'class="label">([^/]+)</td>', drawn) == ["high", "&lt;low&gt;"]
    assert re.findall(r"width: ([\d.]+)%", drawn) == ["75.0", "25.0"]
    assert 'class="bar"' not in (one := draw_scores({"value": 3.14159}))
    assert "3.142" in one


@pytest.mark.parametrize(
    ("head", "call", "text", "message"),
    [
        ("ForMaskedLM", fill_mask, "no blank", r"Put \[MASK\] where"),
        ("ForMaskedLM", fill_mask, "  ", "Type some text"),
        ("ForTokenClassification", tag, "", "Type some text"),
        ("ForSequenceClassification", classify, "x" * 20_001, "20,001 characters"),
        ("ForSequenceClassification", classify, "\u200b", "no token"),
        ("ForMaskedLM", lambda s, text: attention(s, text, 3, 1), "the", "no layer 3: the model has 2"),
    ],
)
def test_bad_input_is_told(head, call, text, message):
    tested = subject(head)
    if message == "no token":
        tested.tokenizer.backend_tokenizer.normalizer = __import__("tokenizers").normalizers.Replace("\u200b", "")
    with pytest.raises(BadInputError, match=message):
        call(tested, text)


def test_models_without_a_view_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds a ClozeBertForQuestionAnswering; the page shows fill-mask"):
        load_subject(str(save(tmp_path, "ForQuestionAnswering")))


def test_space_folder(tmp_path):
    write_space(tmp_path / "space", "org/name")
    app = (tmp_path / "space" / "app.py").read_text()
    compile(app, "app.py", "exec")
    assert 'MODELS: list[str] = ["org/name"]' in app
    assert not re.search(r"^\s*(from|import) (clozebert|\.)", app, flags=re.MULTILINE)
    assert "sdk: gradio" in (tmp_path / "space" / "README.md").read_text()
    with pytest.raises(ValueError, match=r"with_space=.* is not empty"):
        write_space(tmp_path / "space", "org/name")
    write_space(tmp_path / "number", "org/2.0")
    assert ModelCard.load(tmp_path / "number" / "README.md", ignore_metadata_errors=False).data.title == "2.0"


@pytest.fixture(scope="module")
def page_server(tmp_path_factory):
    """The program, showing three models: its address, and the models by kind."""
    pytest.importorskip("gradio")
    home = tmp_path_factory.mktemp("models")
    folders = [
        save(home / name, head, id2label=labels, label2id={v: k for k, v in labels.items()})
        for name, head, labels in (
            ("filler", "ForMaskedLM", {0: "a", 1: "b", 2: "c"}),
            ("tagger", "ForTokenClassification", {0: "O", 1: "B-PER", 2: "B-LOC"}),
            ("judge", "ForSequenceClassification", {0: "bad", 1: "so-so", 2: "good"}),
        )
    ]
    port = 20_000 + os.getpid() % 20_000
    command = [sys.executable, REPOSITORY / "scripts" / "demo_app.py", folders[0], "--more_models", *folders[1:]]
    process = subprocess.Popen([*map(str, command), "--port", str(port)], stderr=subprocess.PIPE, text=True)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        assert process.poll() is None, process.stderr.read()
        try:
            urllib.request.urlopen(url, timeout=1).read()
            break
        except OSError:
            time.sleep(0.2)
    yield url, {shown.kind: shown for shown in map(load_subject, map(str, folders))}
    process.terminate()
    process.wait(timeout=30)
    process.stderr.close()


def test_a_title_may_be_given_and_a_busy_port_is_said(tmp_path):
    """Of a model on the Hub, the last part of the path is the hash of a commit."""
    folder = save(tmp_path / "0123abc", "ForMaskedLM")
    assert load_subject(str(folder)).name == "0123abc"
    assert load_subject(str(folder), name="org/name").name == "org/name"
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(UserError, match=rf"--port {port}: .*in use.*; give another --port"):
            _check_port("127.0.0.1", port)
    _check_port("127.0.0.1", port)
    with pytest.raises(UserError, match="--port 99999: "):
        _check_port("127.0.0.1", 99999)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_page_in_a_browser(page_server, width, tmp_path):
    """All four views on a telephone and on a desk: answers, messages for bad input, no sideways scrolling."""
    address, subjects = page_server
    sync_api = pytest.importorskip("playwright.sync_api")
    browsers = list(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
    if not browsers:
        pytest.skip("no Chromium here")
    pictures = Path(os.environ.get("CLOZEBERT_SCREENSHOTS", tmp_path))
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browsers[0], args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        for number, (kind, text, shown) in enumerate(
            (
                ("fill-mask", "the [MASK] is long", "#words td"),
                ("tagging", f"the river , {LONG}", "#spans .textspan, #spans mark, #spans span"),
                ("classification", "the river is long", "#scores .bar"),
            )
        ):
            if number:
                tab = page.get_by_role("tab", name=re.compile(kind))
                if not tab.is_visible():
                    page.locator(".overflow-menu button").first.click()
                    tab = page.get_by_role("button", name=re.compile(kind))
                tab.first.click()
            # The answer to the example is there before anything is pressed.
            page.get_by_role("heading", name=subjects[kind].name).locator("visible=true").wait_for()
            page.locator(shown).first.wait_for(state="visible")
            page.locator(f"#attention-{kind} table.grid td").first.wait_for(state="visible")
            box = page.locator(f"#text-{kind} textarea")
            box.fill(text)
            page.locator(f"#run-{kind}").click()
            page.locator(shown).first.wait_for(state="visible")
            grid = page.locator(f"#attention-{kind} table.grid")
            grid.locator("td").first.wait_for(state="visible")
            # Another head of another layer is another picture.
            drawn = grid.inner_html()
            for name, value in (("Layer", "2"), ("Head", "3")):
                number = page.get_by_label(f"number input for {name}").locator("visible=true")
                number.fill(value)
                number.press("Tab")
                page.wait_for_function(
                    "([kind, old]) => document.querySelector(`#attention-${kind} table.grid`)?.innerHTML != old",
                    arg=[kind, drawn],
                )
                drawn = grid.inner_html()
            expected = draw_attention(*attention(subjects[kind], text, 2, 3))
            assert re.findall(r': ([\d.]+)"', drawn) == re.findall(r': ([\d.]+)"', expected)
            page.screenshot(path=pictures / f"{kind}-{width}.png", full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            for bad, message in (
                ("", "Type some text first."),
                ("[MASK]" + "x" * 20_000, "this page reads up to 20,000"),
            ):
                box.fill(bad)
                page.locator(f"#run-{kind}").click()
                page.locator(f"#message-{kind}").get_by_text(message).wait_for()
                grid.wait_for(state="detached")
            box.fill("")
            page.screenshot(path=pictures / f"{kind}-{width}-bad-input.png", full_page=True)
        assert errors == []
        browser.close()
