"""Recognises files that are not plain text (PDF, ZIP, images …) by their first bytes, and says what to do."""

import codecs
import re

_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (b"%PDF", "a PDF", "take the text out first, for example with pdftotext"),
    (b"%!PS", "a PostScript file", "take the text out first, for example with ps2ascii"),
    (b"{\\rtf", "an RTF document", "save it as plain text"),
    (b"\xd0\xcf\x11\xe0", "an old Office document", "save it as plain text"),
    (b"PK\x03\x04", "a ZIP archive (.docx, .xlsx, .odt and .epub are such)",
     "unpack it, or save the document as plain text"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first"),
    (b"Rar!", "a RAR archive", "unpack it first"),
    (b"\x1f\x8b", "a gzip file", "give its name the suffix .gz"),
    (b"BZh", "a bzip2 file", "give its name the suffix .bz2"),
    (b"\xfd7zXZ", "an xz file", "give its name the suffix .xz"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", "give its name the suffix .zst"),
    (b"PAR1", "a Parquet file", "give its name the suffix .parquet"),
    (b"ARROW1", "an Arrow file", "give its name the suffix .arrow"),
    (b"\xff\xff\xff\xff", "an Arrow stream", "give its name the suffix .arrow"),
    (b"SQLite format 3", "an SQLite database", "export the text as CSV or JSON lines"),
    (b"\x89PNG", "a PNG image", "leave it out"),
    (b"\xff\xd8\xff", "a JPEG image", "leave it out"),
    (b"GIF8", "a GIF image", "leave it out"),
    (b"\x7fELF", "a program", "leave it out"),
    (b"\x89HDF", "an HDF5 file", "export the text as CSV or JSON lines"),
)  # fmt: skip
# Beginnings that are words, too: "PAR1 is a receptor".
_WORDS = (b"Rar!", b"BZh", b"PAR1", b"ARROW1", b"GIF8")
WITHOUT_HTML = "take the text out first, for example with trafilatura or pandoc"
_HTML = re.compile(rb"<!doctype html|<html", re.IGNORECASE)


def what_it_is(first: bytes) -> tuple[str, str] | None:
    """The kind of a binary file and what to do about it; None for plain text.

    Args:
        first: the first bytes of the file, decompressed.
    """
    for beginning, name, way_out in _KINDS:
        if first.startswith(beginning) and not (beginning in _WORDS and _is_text(first, "UTF-8")):
            return name, way_out
    if first[257:262] == b"ustar":
        return "a tar archive", "unpack it first"
    if _HTML.match(_after_comments(first.removeprefix(b"\xef\xbb\xbf")[:4096])):
        return "an HTML page", WITHOUT_HTML
    # A few NULs in a long text are a fault of the text: the file is not binary.
    if first.count(0) > len(first) / 1000:
        # The zeros of UTF-16 are the upper halves of Latin letters, blanks and line ends.
        encoding = "UTF-16LE" if first[1::2].count(0) > first[::2].count(0) else "UTF-16BE"
        # Half of Latin text is zeros then, and text of other scripts is no UTF-8. All else is text with stray zeros.
        if _is_text(first, encoding) and (
            3 * first.count(0) > len(first) or not _is_text(first.replace(b"\0", b""), "UTF-8")
        ):
            return f"text in {encoding}", f"convert it: iconv -f {encoding} -t UTF-8"
        return "a binary file", "leave it out, or export its text; tr -d '\\0' takes zero bytes out of text"
    return None


def _is_text(first: bytes, encoding: str) -> bool:
    """Whether bytes in this encoding are printable characters and whitespace."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(first)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return "".join(text.split()).isprintable()


def _after_comments(text: bytes) -> bytes:
    """The text behind the comments of HTML, and the `<?xml …?>` of XHTML, at its beginning."""
    text = text.lstrip()
    while text.startswith((b"<!--", b"<?")):
        text = text[2:].partition(b"-->" if text.startswith(b"<!--") else b"?>")[2].lstrip()
    return text
