"""XML: what is read of PubMed, JATS and plain files, and files that are refused."""

import bz2
import lzma
from pathlib import Path

import pytest

from clozebert.corpus.readers import xml_texts
from clozebert.corpus.readers.inputs import Reader
from clozebert.utils.errors import UserError

PUBMED = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle, 1st January 2025//EN" "https://example.org/pubmed.dtd">
<PubmedArticleSet>
<PubmedArticle><MedlineCitation Status="MEDLINE"><PMID Version="1">1</PMID><Article>
<Journal><Title>Journal of Things</Title></Journal>
<ArticleTitle>Effects of H<sub>2</sub>O on <i>E. coli</i>.</ArticleTitle>
<Abstract><AbstractText Label="AIM">We look at
  water &amp; cells.</AbstractText><AbstractText>It is β-wet.</AbstractText></Abstract>
<AuthorList><Author><LastName>Doe</LastName></Author></AuthorList></Article></MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation>
<Article><ArticleTitle>A second one.</ArticleTitle></Article></MedlineCitation></PubmedArticle>
</PubmedArticleSet>
"""
JATS = """<article xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:mml="http://www.w3.org/1998/Math/MathML"><front>
<journal-meta><journal-title>J. Th.</journal-title></journal-meta>
<article-meta><article-id>77</article-id><title-group>
<article-title>On <italic>things</italic></article-title></title-group>
<contrib-group><contrib><name><surname>Doe</surname></name></contrib></contrib-group>
<abstract><p>Things matter.</p></abstract></article-meta></front>
<body><sec><title>Introduction</title><p>Things are old <xref ref-type="bibr">[1]</xref>. Say
<inline-formula><mml:math><mml:mi>xyz</mml:mi></mml:math></inline-formula> so.</p>
<table-wrap><caption><p>A table.</p></caption><table><tr><td>0.113</td></tr></table></table-wrap></sec></body>
<back><ref-list><ref><article-title>Older things</article-title></ref></ref-list></back></article>
"""


def read(path: Path, content: str | bytes, **options: str) -> list[str]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(Reader([path], **options).texts())


def test_of_pubmed_titles_and_abstracts_are_read(tmp_path: Path) -> None:
    assert read(tmp_path / "a.xml", PUBMED) == [
        "Effects of H2O on E. coli.\nWe look at water & cells.\nIt is β-wet.",
        "A second one.",
    ]


def test_what_is_no_english_text_of_pubmed_is_left_out(tmp_path: Path) -> None:
    """Lists of deleted ids are no document. An article without title and abstract is counted as an empty one."""
    other = '<OtherAbstract Language="spa"><AbstractText>Un resumen.</AbstractText></OtherAbstract>'
    untitled = """<PubmedArticle><PMID>3</PMID><Journal><Title>Lancet</Title></Journal><ArticleTitle/>
        <VernacularTitle>Zur Frage.</VernacularTitle></PubmedArticle>"""
    deleted = "<DeleteCitation><PMID>1</PMID><PMID>2</PMID></DeleteCitation>"
    content = PUBMED.replace("</Article>", f"</Article>{other}")
    content = content.replace("</PubmedArticleSet>", f"{untitled}{deleted}</PubmedArticleSet>")
    assert read(tmp_path / "a.xml", content) == [*read(tmp_path / "b.xml", PUBMED), ""]


def test_of_jats_title_abstract_and_body_are_read(tmp_path: Path) -> None:
    expected = "On things\nThings matter.\nIntroduction\nThings are old [1]. Say so.\nA table."
    assert read(tmp_path / "a.nxml", JATS) == [expected]
    assert read(tmp_path / "b.xml", f"<set>{JATS}{JATS}</set>") == [expected, expected]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "<docs><doc id='1'>One <b>bo</b>ld.</doc><doc><t>Two</t><t>lines</t></doc></docs>",
            ["One bold.", "Two\nlines"],
        ),
        ("<book><title>A</title><p>B</p><p>C<br/>D</p></book>", ["A\nB\nC\nD"]),
        (  # TEI and the BNC: words and punctuation marks are elements of a line
            "<TEI><p><s><w>Hi</w><pc>,</pc> <persName>Ada</persName><c>.</c></s></p><p>End</p></TEI>",
            ["Hi, Ada.\nEnd"],
        ),
        # What is left out of an article of PubMed or JATS is read elsewhere.
        ("<cards><card><front>Why?</front><back>So.</back></card></cards>", ["Why?\nSo."]),
        ("<db><table><column>a b</column></table><table><column>c</column></table></db>", ["a b", "c"]),
        ("<a>only  text\n here</a>", ["only text here"]),
        ("<a><![CDATA[x < y]]></a>", ["x < y"]),
        ("<docs><doc/><doc> </doc><doc>z</doc></docs>", ["z"]),
        # An article of another kind has no part that is known: all of it is read.
        ("<article><para>One.</para><para>Two.</para></article>", ["One.\nTwo."]),
        (
            "<c><article><title>T</title><abstract>A</abstract><content>C</content><body>B</body><back>K</back>"
            "<article>inner</article>on</article><article><text>D</text></article></c>",
            ["T\nA\nC\nB\nK", "inner", "on", "D"],
        ),
    ],
)
def test_plain_xml(tmp_path: Path, content: str, expected: list[str]) -> None:
    assert read(tmp_path / "a.xml", content) == expected


@pytest.mark.parametrize("size", [1, 2, 7])
def test_it_does_not_matter_where_a_block_ends(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(tmp_path / "a.xml", PUBMED)
    monkeypatch.setattr(xml_texts, "_BLOCK", size)
    assert read(tmp_path / "b.xml", PUBMED) == whole


def test_compressed_xml(tmp_path: Path) -> None:
    whole = read(tmp_path / "a.xml", PUBMED)
    assert read(tmp_path / "a.xml.xz", lzma.compress(PUBMED.encode())) == whole
    assert read(tmp_path / "a.xml.bz2", bz2.compress(PUBMED.encode())) == whole


def test_another_encoding_is_read_by_its_declaration(tmp_path: Path) -> None:
    content = '<?xml version="1.0" encoding="iso-8859-1"?><a>Käse</a>'.encode("latin-1")
    assert read(tmp_path / "a.xml", content) == ["Käse"]


def test_entities_are_refused(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;">]><a>&y;</a>'
    with pytest.raises(UserError, match="declares the XML entity 'x'"):
        read(tmp_path / "a.xml", bomb)
    outside = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><a>&x;</a>'
    with pytest.raises(UserError, match="declares the XML entity 'x'"):
        read(tmp_path / "a.xml", outside)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<docs><doc>one</doc>\n<doc>two</dok></docs>", r"line 2: it is not well-formed XML \(mismatched tag\)"),
        ("<docs><doc>one</doc>\n<doc>cut", "line 2: it is not well-formed XML"),
        ("<docs><doc>a &alpha; b</doc></docs>", r"line 1: it is not well-formed XML \(undefined entity\)"),
        ('<!DOCTYPE d SYSTEM "d.dtd"><d><p>a &alpha; b</p></d>', "&alpha; is defined nowhere in the file"),
    ],
)
def test_what_is_broken_is_named_or_left_out(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.xml", content)
    reader = Reader([tmp_path / "a.xml"], on_bad_text="skip")
    list(reader)
    assert reader.sources[0].bad_text == 1


def test_a_document_that_has_lost_an_entity_is_left_out_and_the_others_are_not(tmp_path: Path) -> None:
    texts = "".join(f"<doc>{text}</doc>" for text in ("one", "two &alpha; and &beta; three", "four"))
    (tmp_path / "a.xml").write_text(f'<!DOCTYPE docs SYSTEM "d.dtd"><docs>{texts}</docs>')
    reader = Reader([tmp_path / "a.xml"], on_bad_text="skip")
    assert [document.text for document in reader] == ["one", "four"]
    assert (reader.sources[0].documents, reader.sources[0].bad_text) == (3, 1)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<d>" + "abc " * 10 + "</d>", ["abc abc abc abc", "abc abc abc abc", "abc abc"]),
        ("<d>" + "x" * 40 + "</d>", None),
        ("<d><p>one two</p><p>three four five</p><p>six</p></d>", ["one two\nthree", "four five\nsix"]),
        ("<d>" + "<p>a</p>" * 7 + "</d>", ["a\na\na\na", "a\na\na"]),
    ],
)
def test_long_documents_are_cut_and_nothing_is_lost(
    tmp_path: Path, content: str, expected: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xml_texts, "LARGEST_DOCUMENT", 16)
    monkeypatch.setattr(xml_texts, "_MOST_LINES", 3)
    monkeypatch.setattr(xml_texts, "_BLOCK", 1)
    found = read(tmp_path / "a.xml", content)
    if expected is None:
        assert "".join(found) == "x" * 40
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<a>" * 2_000, "more than 1,000 nested elements"),
        ('<a b="' + "x" * (5 << 20) + '"/>', "line 1: a tag or comment of more than 4 MiB"),
    ],
)
def test_what_would_take_all_memory_is_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.xml", content)
