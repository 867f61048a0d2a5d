"""Reads texts from XML: PubMed citations, JATS articles (PubMed Central, bioRxiv), and plain XML.

A document is a `PubmedArticle`, an `article` or, in other XML, a child of the root; a root whose children are
paragraphs is one document. The text is, for PubMed, the title and the abstract; for JATS, whose articles begin with a
`front`, the title, the abstract and the body without tables, formulas and references; for other XML, the text of all
elements. Each block element is a line.

The file is read piece by piece with expat, Python's own parser. Memory is bounded: a long document is cut, as in text
files. A file that declares entities raises an error, since a few lines of them can expand to gigabytes; so do a tag of
megabytes and a very deep nesting.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from xml.parsers import expat

from ...utils.errors import UserError
from .table_file import LARGEST_DOCUMENT, BadText

XML_SUFFIXES = (".xml", ".nxml")

_DOCUMENTS = ("PubmedArticle", "PubmedBookArticle", "article")
_FIRST_IN_JATS = ("front", "front-stub", "processing-meta")  # the first child of an article, before its body
# The elements of a PubMed or JATS document that are read, and those that are left out, also within the former.
_READ = ("ArticleTitle", "BookTitle", "AbstractText", "article-title", "subtitle", "abstract", "body")
_LEFT_OUT = ("OtherAbstract", "ref-list", "back", "table", "tex-math", "math", "object-id", "inline-formula",
             "disp-formula", "fn-group", "counts", "journal-meta")  # fmt: skip
_NO_DOCUMENTS = ("DeleteCitation", "DeleteDocument")  # lists of ids in the update files of PubMed
_PARAGRAPHS = ("p", "para", "paragraph", "title", "head", "s", "l", "line", "lg", "sentence", "h1", "h2", "h3", "h4")
# Inline elements, also of TEI and the BNC. Any other element begins a new line at its start and its end, but not within
# one that is left out.
_INLINE = ("a", "abbr", "abbrev", "b", "bold", "c", "chemical", "code", "em", "email", "emphasis", "ext-link",
           "foreign", "g", "hi", "i", "inline-formula", "inline-graphic", "italic", "link", "math", "monospace", "name",
           "named-content", "orgName", "overline", "pc", "persName", "placeName", "q", "quote", "ref", "roman", "sc",
           "span", "strike", "strong", "styled-content", "sub", "sup", "term", "tex-math", "u", "underline", "uri", "w",
           "xref")  # fmt: skip
_BLOCK = 1 << 16
_MOST_LINES = 1 << 16  # of a document, before it is cut; each takes memory beside its text
_DEEPEST = 1_000


def texts_of_xml(file: BinaryIO, path: Path) -> Iterator[str | BadText]:
    """Each document; the last item is a `BadText` if the file is not well formed or uses an undefined entity.

    Raises:
        UserError: the file declares entities.
    """
    documents = _Documents(path)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = documents.start
    parser.EndElementHandler = documents.end
    parser.CharacterDataHandler = documents.text
    parser.EntityDeclHandler = documents.entity
    parser.SkippedEntityHandler = lambda name, is_parameter: documents.skipped(
        name, is_parameter, parser.CurrentLineNumber
    )
    ended, size = False, 0
    while not ended:
        block = file.read(_BLOCK)
        ended, size = not block, size + len(block)
        try:
            parser.Parse(block, ended)
        except expat.ExpatError as error:
            yield from documents.finished()
            reason = expat.errors.messages.get(error.code, str(error))
            yield BadText(error.lineno, f"it is not well-formed XML ({reason}); the rest of the file cannot be read")
            return
        yield from documents.finished()
        if size - parser.CurrentByteIndex > LARGEST_DOCUMENT:  # expat keeps it whole
            raise UserError(
                f"{path}, line {parser.CurrentLineNumber}: a tag or comment of more than {LARGEST_DOCUMENT >> 20} MiB"
            )


class _Documents:
    """Follows the elements and collects the text of each document."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bad: BadText | None = None  # an entity of the current document that is not defined
        self._open: list[str] = []
        self._depth = 0  # the depth of the current document's element; 0: no document is open
        self._is_article = False  # whether the current document is one of PubMed or JATS
        self._begins_article = False  # whether it is an `article` without a child so far
        self._first_child: str | None = None
        self._read = self._left_out = 0  # how many elements of _READ and _LEFT_OUT are open
        self._pieces: list[str] = []  # of the current line
        self._line_is_read = False
        self._lines: list[tuple[bool, str]] = []
        self._size = 0  # characters of the lines and pieces
        self._done: list[str | BadText] = []

    def finished(self) -> Iterator[str | BadText]:
        """The documents that have ended since the last call."""
        done, self._done = self._done, []
        return iter(done)

    def start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2]
        self._open.append(name)
        depth = len(self._open)
        if depth > _DEEPEST:
            raise UserError(f"{self.path} has more than {_DEEPEST:,} nested elements: it is not a text")
        if depth == 2 and self._first_child is None:
            self._first_child = name
        if self._begins_article and depth == self._depth + 1:
            self._begins_article, self._is_article = False, name in _FIRST_IN_JATS
        if name in _DOCUMENTS:
            if not self._is_article:
                self._close()
                self._depth = depth
                self._is_article, self._begins_article = name != "article", name == "article"
        elif depth == 2 and not self._depth:
            # The root is the document where its children are paragraphs.
            self._depth = 1 if self._first_child in _PARAGRAPHS else 2
        if name not in _INLINE and not self._left_out:
            self._end_line()
        self._read += name in _READ
        self._left_out += self._is_left_out(name)

    def end(self, name: str) -> None:
        name = self._open[-1]
        self._left_out -= self._is_left_out(name)
        if name not in _INLINE and not self._left_out:
            self._end_line()
        self._read -= name in _READ
        depth = len(self._open)
        if depth == self._depth or depth == 1:
            self._close()
            self._depth, self._is_article, self._begins_article = 0, False, False
        self._open.pop()

    def _is_left_out(self, name: str) -> bool:
        return name in _NO_DOCUMENTS or (self._is_article and name in _LEFT_OUT)

    def text(self, text: str) -> None:
        if self._left_out:
            return
        self._pieces.append(text)
        self._line_is_read = self._read > 0
        self._size += len(text)
        if self._size > LARGEST_DOCUMENT or len(self._lines) > _MOST_LINES:
            self._cut()

    def entity(self, name: str, *_: object) -> None:
        raise UserError(
            f"{self.path} declares the XML entity {name!r}; such files are not read, as entities can stand for "
            f"gigabytes: replace the entities, for example with xmllint --noent"
        )

    def skipped(self, name: str, is_parameter: bool, line: int) -> None:
        if not is_parameter and self._bad is None and not self._left_out:
            self._bad = BadText(line, f"&{name}; is defined nowhere in the file")

    def _cut(self) -> None:
        """End the document at the last space so far; what follows in its element is another document."""
        line = "".join(self._pieces)
        end = max(line.rfind(" "), line.rfind("\n")) if self._lines or " " in line or "\n" in line else len(line)
        self._pieces = [line[: end + 1]]
        self._close()
        self._pieces = [line[end + 1 :]]
        self._size = len(self._pieces[0])

    def _end_line(self) -> None:
        line = " ".join("".join(self._pieces).split())
        if line:
            self._lines.append((self._line_is_read, line))
        self._pieces = []

    def _close(self) -> None:
        """End the document: keep all lines or, of an article, those to read; it may be empty."""
        self._end_line()
        if self._bad is not None:
            self._done.append(self._bad)
        elif self._lines:
            self._done.append("\n".join(line for is_read, line in self._lines if is_read or not self._is_article))
        self._lines, self._size, self._bad = [], 0, None
