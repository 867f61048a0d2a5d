"""The demo page: what stands in a text, a label or a name is text and no markup; no file is read; memory is bounded."""

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from saved_models import make_model, make_tokenizer, save
from test_fuzz import deep_and_fast

from clozebert.hub.demo_page import (
    MAX_CHARACTERS,
    BadInputError,
    Subject,
    _said,
    attention,
    describe,
    draw_attention,
    draw_blanks,
    draw_scores,
)

REPOSITORY = Path(__file__).resolve().parents[2]
MARKUP = (
    "<script>hacked=1</script>", "<img src=x onerror=hacked=1>", "</td></tr></table><b>", '"><svg onload=hacked=1>',
    "' onmouseover='hacked=1", "&lt;b&gt;", "`</code>`", "![x](http://127.0.0.1:9/x.png)", "[x](javascript:hacked=1)",
    "${hacked=1}", "{{hacked=1}}", "<!--", "]]>", "\0", "$$x$$", "</script>", "a` ![x](http://127.0.0.1:9/x.png) `b",
)  # fmt: skip
# What would stand in the page if one of these were markup.
FOREIGN = "[onerror], [onload], [onmouseover], img[src='x'], a[href^='javascript'], img[src*='127.0.0.1:9']"
TEXT = st.one_of(st.text(max_size=30), st.lists(st.sampled_from(MARKUP), max_size=3).map("".join))
TAGS = {
    "div": {"class", "style"}, "table": {"class"}, "tr": set(), "th": {"class"}, "td": {"class", "style", "title"},
    "b": set(), "br": set(), "h1": set(), "p": set(), "code": set(),
}  # fmt: skip


class Parsed(HTMLParser):
    """The tags, attributes and text of HTML, as a browser sees them."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.words, self.titles = "", []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        for name, value in attrs:
            assert name in TAGS[tag], (tag, name)
            if name == "style":
                assert re.fullmatch(r"(background: rgba\(37, 99, 235, [\d.naif]+\)|width: [\d.-]+%)", value or "")
            if name == "title":
                self.titles.append(value)

    def handle_data(self, data: str) -> None:
        self.words += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")

    handle_decl = handle_pi = unknown_decl = handle_comment


def as_shown(text: str) -> str:
    """What a parser of HTML makes of a text: it leaves out or replaces some control characters."""
    return Parsed(f"<p>{__import__('html').escape(text)}</p>").words


@deep_and_fast(st.lists(TEXT, min_size=1, max_size=4))
def test_drawings(texts: list[str]) -> None:
    """Every drawing holds its words as text, and no tag but its own."""
    size = len(texts)
    drawn = Parsed(draw_attention(texts, torch.eye(size)))
    assert drawn.words == "".join(map(as_shown, texts)) * 2
    assert len(drawn.titles) == size * size
    words = Parsed(draw_blanks([[(text, 0.5) for text in texts]])).words
    assert words == "".join(f"{as_shown(text)}50.0%" for text in texts)
    labels = dict.fromkeys(texts, 0.25)
    assert all(as_shown(label) in Parsed(draw_scores(labels)).words for label in labels)
    for head, kind in (("ForTokenClassification", "tagging"), ("ForSequenceClassification", "classification")):
        subject = Subject(texts[0], kind, model_of(head), make_tokenizer(), 39)
        subject.model.config.id2label = dict(enumerate(texts))
        said = Parsed(describe(subject)).words
        assert said.startswith(as_shown(texts[0]))

    def refuse() -> None:
        raise BadInputError(texts[0])

    assert as_shown(texts[0]) in Parsed(_said(refuse, None)[1]).words


_MODELS: dict[str, Any] = {}


def model_of(head: str) -> Any:
    """A model whose labels may be changed; made once."""
    if head not in _MODELS:
        _MODELS[head] = make_model(head)
    return _MODELS[head]


@pytest.mark.parametrize("value", [None, "1", [1], {}, float("nan"), float("inf"), 0, -1, 10**400, 3])
def test_a_layer_that_is_none_is_told(value: Any) -> None:
    subject = Subject("tiny", "fill-mask", model_of("ForMaskedLM"), make_tokenizer(), 39)
    with pytest.raises(BadInputError, match="There is no layer"):
        attention(subject, "the river", value, 1)


MEASURE = """
import sys
sys.path[:0] = sys.argv[1:3]
from saved_models import make_model, make_tokenizer
from clozebert.hub.demo_page import MAX_CHARACTERS, Subject, draw_blanks, fill_mask
from clozebert.utils.memory import peak_memory
subject = Subject("t", "fill-mask", make_model("ForMaskedLM", vocab_size=50_000), make_tokenizer(), 39)
fill_mask(subject, "the [MASK]")
before = peak_memory()
answers = fill_mask(subject, "[MASK]" * (MAX_CHARACTERS // 6))
drawn = draw_blanks(answers)
print(len(answers), f"{(peak_memory() - before) / 2**20:.0f}")
"""


@pytest.mark.faults
def test_a_text_of_blanks_takes_little_memory(figure: Callable[[str, Any], None]) -> None:
    """3,333 blanks in a vocabulary of 50,000. All their probabilities would be 667 MB; measured: 30 MB."""
    tests = REPOSITORY / "tests"
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tests), str(tests / "hub")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    blanks, used = done.stdout.split()
    assert int(blanks) == MAX_CHARACTERS // 6
    assert float(used) < 200
    figure("demo page, a text of blanks", f"{int(blanks):,} blanks: {used} MB")


# The page itself -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int, Path]]:
    """The program with a tagger and a classifier whose names and labels are markup: its URL, port and a secret file."""
    pytest.importorskip("gradio")
    home = tmp_path_factory.mktemp("models")
    (home / "secret.txt").write_text("the secret")
    labels = {0: "O", 1: MARKUP[1], 2: MARKUP[-1]}
    folders = []
    for name, head in (("<img src=x onerror=hacked=1>", "ForTokenClassification"), ("j", "ForSequenceClassification")):
        folders.append(save(home / name, head, id2label=labels, label2id={v: k for k, v in labels.items()}))
    folders.append(save(home / "filler", "ForMaskedLM"))
    port = 20_000 + os.getpid() % 20_000
    command = [sys.executable, REPOSITORY / "scripts" / "demo_app.py", folders[0], "--more_models", *folders[1:]]
    log = (home / "log.txt").open("w")
    process = subprocess.Popen(
        [*map(str, command), "--port", str(port)],
        stderr=log,
        stdout=log,
        cwd=home,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, (home / "log.txt").read_text()
            try:
                urllib.request.urlopen(url, timeout=1).read()
                break
            except OSError:
                time.sleep(0.2)
        yield url, process.pid, home
    finally:
        process.terminate()
        process.wait(timeout=30)
        log.close()


def ask(url: str, body: bytes | None = None) -> tuple[int, bytes]:
    """The status and the body of an answer."""
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def call(url: str, name: str, data: list[Any]) -> bytes:
    """What an event of the page answers, by the way that programs take."""
    status, body = ask(f"{url}/gradio_api/call/{name}", json.dumps({"data": data}).encode())
    if status != 200:
        return body
    return ask(f"{url}/gradio_api/call/{name}/{json.loads(body)['event_id']}")[1]


def events_of(url: str) -> list[str]:
    return sorted(name.removeprefix("/") for name in json.loads(ask(f"{url}/gradio_api/info")[1])["named_endpoints"])


@pytest.mark.faults
def test_no_file_is_read(page_server: tuple[str, int, Path]) -> None:
    url, _, home = page_server
    secret = home / "secret.txt"
    for place in (str(secret), "secret.txt", "./secret.txt", f"..{secret}", "/etc/passwd", "../../../../etc/passwd"):
        for route in ("gradio_api/file=", "gradio_api/file/", "file=", "static/", "assets/", "svelte/"):
            status, body = ask(f"{url}/{route}{urllib.request.quote(place)}")
            assert b"the secret" not in body
            assert b"root:" not in body
            assert status >= 400 or b"<!doctype html" in body.lower(), (route, place)
    names = events_of(url)
    assert len(names) >= 3
    sent = {"path": str(secret), "url": f"file://{secret}", "meta": {"_type": "gradio.FileData"}}
    for name in names:
        for value in (sent, [sent], str(secret), f"file={secret}", None, 5, [], {}, True, "x" * 30_000):
            for data in ([value], [value, 1, 1], [value, value, value], []):
                answer = call(url, name, data)
                assert b"the secret" not in answer
    assert ask(url)[0] == 200


def memory_of(pid: int) -> float:
    """The most that a process ever took, in MB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found.group(1)) / 1024


@pytest.mark.faults
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process as Linux tells it")
def test_a_large_request_is_refused_before_it_is_read(
    page_server: tuple[str, int, Path], figure: Callable[[str, Any], None]
) -> None:
    """64 MB with a length, and in chunks without one, to the routes that read a body."""
    url, pid, _ = page_server
    name = events_of(url)[0]
    before, refused = memory_of(pid), 0
    for route in (f"call/{name}", "queue/join", "upload", f"run/{name}"):
        for chunked in (False, True):
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
            blocks = (b" " * (1 << 20) for _ in range(64))
            kind = "multipart/form-data; boundary=x" if route.endswith("upload") else "application/json"
            headers = {"Content-Type": kind} | ({} if chunked else {"Content-Length": str(64 << 20)})
            try:
                connection.request("POST", f"/gradio_api/{route}", body=blocks, headers=headers, encode_chunked=chunked)
                status = connection.getresponse().status
            except (BrokenPipeError, ConnectionResetError):
                status = 413  # it hung up before everything was sent
            assert status == 413 or (route, chunked, status) == ("upload", True, 400), (route, chunked)
            refused += 1
            connection.close()
    used = memory_of(pid) - before
    figure("demo page, requests of 64 MB", f"{refused} of {refused} refused; {used:.0f} MB more memory")
    assert used < 64
    assert ask(url)[0] == 200


@pytest.mark.faults
def test_nothing_is_rendered_as_markup(page_server: tuple[str, int, Path], figure: Callable[[str, Any], None]) -> None:
    """In a browser: names, labels, texts and messages; no element of theirs, no request, no line of theirs runs."""
    sync_api = pytest.importorskip("playwright.sync_api")
    browsers = list(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
    if not browsers:
        pytest.skip("no Chromium here")
    url, _, _ = page_server
    text = " ".join([*MARKUP, "[MASK]"]).replace("\0", "")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browsers[0], args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        shown = 0
        for kind in ("tagging", "classification", "fill-mask"):
            if shown:
                page.get_by_role("tab", name=re.compile(kind)).first.click()
            box = page.locator(f"#text-{kind} textarea")
            box.wait_for(state="visible")
            for given_text in (text, *MARKUP[:4]):
                box.fill(given_text)
                page.locator(f"#run-{kind}").click()
                page.wait_for_timeout(700)
                shown += 1
                assert page.locator(FOREIGN).count() == 0
                assert page.evaluate("typeof hacked") == "undefined"
        assert not [one for one in asked if ":9/" in one or one.endswith("/x")]
        browser.close()
    figure(
        "demo page, markup", f"{shown} texts of {len(MARKUP)} kinds of markup in three views: none rendered, none run"
    )
