"""Texts: encodings, languages, and the text inside of documents."""

from __future__ import annotations

import time

import pytest

from frazil.extract import Unsupported
from frazil.extract.documents.markup import strip_markup
from frazil.extract.documents.text import TEXT, language
from frazil.extract.window import Damaged
from tests import extract_documents as made
from tests.extract_kit import MemoryItem, look

ENGLISH = "It was the best of times, it was the worst of times, it was the age of wisdom."
GERMAN = "Über allen Gipfeln ist Ruh, in allen Wipfeln spürest du kaum einen Hauch."
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
PPTX = "application/vnd.openxmlformats-officedocument.presentationml.presentation"


def test_a_text_tells_its_beginning_its_language_and_its_counts():
    assert look(TEXT, f"{ENGLISH}\r\n{ENGLISH}\r\n".encode(), detected_type="text/plain") == {
        "text": f"{ENGLISH}\n{ENGLISH}\n",
        "language": "en",
        "encoding": "ascii",
        "characters": 158,
        "words": 36,
        "lines": 2,
        "truncated": False,
    }


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (GERMAN.encode(), "utf-8"),
        (b"\xef\xbb\xbf" + GERMAN.encode(), "utf-8"),
        (GERMAN.encode("utf-16"), "utf-16-le"),
        (GERMAN.encode("utf-16-le"), "utf-16-le"),
        (GERMAN.encode("utf-16-be"), "utf-16-be"),
        (b"\xff\xfe\0\0" + GERMAN.encode("utf-32-le"), "utf-32-le"),
        (GERMAN.encode("windows-1252"), "windows-1252"),
    ],
)
def test_encodings_are_told_apart(data: bytes, encoding: str):
    found = look(TEXT, data, detected_type="text/plain")
    assert (found["text"], found["encoding"], found["language"]) == (GERMAN, encoding, "de")


def test_an_encoding_that_is_declared_is_believed():
    russian = "Все счастливые семьи похожи друг на друга, каждая несчастлива по-своему."
    page = f'<html><meta charset="windows-1251"><p>{russian}'.encode("windows-1251")
    found = look(TEXT, page, detected_type="text/html")
    assert (found["text"], found["encoding"], found["language"]) == (russian, "cp1251", "ru")


@pytest.mark.parametrize("declared", ["base64", "zlib_codec", "no-such-thing", "unicode_escape" * 9])
def test_a_declared_encoding_that_is_none_is_not_used(declared: str):
    page = f'<meta charset="{declared}"><p>'.encode() + GERMAN.encode("windows-1252")
    assert look(TEXT, page, detected_type="text/html")["text"] == GERMAN


@pytest.mark.parametrize("data", [b"MZ\0\0" * 40, bytes(range(1, 32)) * 40, b"\x00\xff" * 3])
def test_what_is_no_text_is_unsupported(data: bytes):
    with pytest.raises(Unsupported, match="not text"):
        look(TEXT, data, detected_type="text/plain")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (ENGLISH, "en"),
        (GERMAN, "de"),
        ("吾輩は猫である。名前はまだ無い。", "ja"),
        ("ok", None),
        ("12 34 56 78 90 " * 20, None),
        ("asdkjh qwpoeiu zmxcnb qowieu laksjd", None),
        ("IMG_0001.JPG IMG_0002.JPG IMG_0003.JPG", None),
    ],
)
def test_a_language_is_told_only_where_there_is_enough_of_it(text: str, wanted: str | None):
    assert language(text) == wanted


def test_tables_and_code_have_no_language():
    assert "language" not in look(TEXT, f'{{"a": "{ENGLISH}"}}'.encode(), detected_type="application/json")
    assert "language" not in look(TEXT, ENGLISH.encode(), detected_type="text/csv")


def test_of_a_large_text_one_megabyte_is_read_and_64_kib_are_kept():
    item = MemoryItem(("ä" * 99 + "\n").encode() * 50_000, detected_type="text/plain")
    found = TEXT.look(item)
    assert item.bytes_read == 1 << 20
    assert (1 << 16) - 1 <= len(found["text"].encode()) <= 1 << 16
    assert found["truncated"] is True


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("<title>A</title><p>b &amp; c</p><script>if (a<b) x()</script>d", "A\nb & c\nd"),
        ("a<br>b<!-- <p>hidden --> c", "a\nb c"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("<style>p {}</style>x<SCRIPT src='a'>y</Script>z", "xz"),
        ("<a><![CDATA[raw]]></a>", "raw]]>"),
        ("never <closed", "never"),
        ("", ""),
    ],
)
def test_tags_are_stripped(source: str, wanted: str):
    assert strip_markup(source) == wanted


@pytest.mark.parametrize("piece", ["<", "<!--", "<script>", "<![", "</", "<a ", "&", "<p", "<!--<script><"])
def test_no_page_takes_more_than_a_moment(piece: str):
    started = time.process_time()
    strip_markup(piece * (300_000 // len(piece)))
    assert time.process_time() - started < 5


def test_xml_is_read_without_its_entities():
    assert look(TEXT, made.BOMB.encode(), detected_type="text/xml")["characters"] < 2000


def test_the_text_of_a_pdf():
    found = look(TEXT, made.pdf(pages=3, texts=[ENGLISH, "Second page\nnext line"]))
    assert found["text"].strip() == f"{ENGLISH}\nSecond page\nnext line"
    assert (found["language"], found["truncated"]) == ("en", False)


def test_of_a_long_pdf_the_first_pages_are_read():
    item = MemoryItem(made.pdf(pages=400, texts=[f"page {n} of many" for n in range(400)], padding=20 << 20))
    found = TEXT.look(item)
    assert found["text"].startswith("page 0 of many\npage 1 of many")
    assert "page 49 of many" in found["text"] and "page 50 " not in found["text"]
    assert found["truncated"] is True
    assert item.bytes_read < 1_000_000


def test_a_locked_pdf_has_no_text():
    with pytest.raises(Unsupported, match="password"):
        look(TEXT, made.pdf(texts=["x"], password="secret"))


def test_the_text_of_office_documents_and_books():
    assert look(TEXT, made.docx(paragraphs=[ENGLISH, "2 &lt; 3"]))["text"] == f"{ENGLISH}\n2 < 3\n"
    assert look(TEXT, made.odt(paragraphs=[GERMAN]))["language"] == "de"
    found = look(TEXT, made.epub(chapters=["<p>One.</p>", "<p>Two &amp; three.</p>"]))
    assert found["text"].split("\n") == ["x", "One.", "x", "Two & three."]


def test_slides_are_read_in_their_order():
    parts = {f"ppt/slides/slide{n}.xml": f"<s><p><t>slide {n}</t></p></s>" for n in (10, 2, 1)}
    assert look(TEXT, made.zipped(parts), detected_type=PPTX)["text"].split()[1::2] == ["1", "2", "10"]


@pytest.mark.parametrize("bomb", [made.BOMB, made.EXTERNAL], ids=["billion laughs", "external entity"])
def test_entities_in_a_document_are_refused(bomb: str):
    with pytest.raises(Unsupported, match="entities"):
        look(TEXT, made.zipped({"word/document.xml": bomb}), detected_type=DOCX)


def test_of_an_endless_document_only_the_beginning_is_unpacked():
    body = made.BODY.format(paragraphs=f"<w:p><w:t>{ENGLISH}</w:t></w:p>" * 300_000)
    found = look(TEXT, made.zipped({"word/document.xml": body}), detected_type=DOCX)
    assert found["truncated"] is True
    assert found["characters"] < 4 << 20


def test_a_document_that_is_none_is_damaged_or_unsupported():
    with pytest.raises(Damaged, match="not a zip"):
        look(TEXT, b"text", detected_type=DOCX)
    for body in ("not xml", '<?xml version="1.0" encoding="nobody-knows"?><a/>'):
        with pytest.raises(Damaged, match="not XML"):
            look(TEXT, made.zipped({"word/document.xml": body}), detected_type=DOCX)
    with pytest.raises(Unsupported, match="password"):
        look(TEXT, made.ole({"EncryptedPackage": b"x"}), detected_type=DOCX)
    with pytest.raises(Unsupported, match="RTF"):
        look(TEXT, b"{\\rtf1 x}", detected_type="text/rtf")
    with pytest.raises(Unsupported, match="empty"):
        look(TEXT, b"", detected_type="text/plain")
