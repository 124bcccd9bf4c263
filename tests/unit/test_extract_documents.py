"""PDF, office documents and books: what they say of themselves; damaged and hostile ones."""

from __future__ import annotations

import tracemalloc

import pytest

from frazil.extract import Limits, TooMuch, Unsupported
from frazil.extract.documents import ole
from frazil.extract.documents.office import OFFICE
from frazil.extract.documents.pdf import PDF
from frazil.extract.normalize import date, pdf_date
from frazil.extract.window import Damaged
from tests import extract_documents as made
from tests.extract_kit import MemoryItem, look

INFO = {
    "Title": "Grüße aus Köln",
    "Author": "Ada",
    "Subject": "Looms",
    "Keywords": "a, b",
    "Creator": "Pen",
    "CreationDate": "D:20240501123456+02'00'",
    "ModDate": "D:20240502",
}


class Rationed(MemoryItem):
    """An item that refuses to read more than it may, as the engine's does."""

    def read(self, start: int, length: int) -> bytes:
        if self.bytes_read + length > self.limits.max_range_bytes:
            raise TooMuch("more than may be read by ranges")
        return super().read(start, length)


def test_a_pdf_tells_pages_names_and_dates():
    found = look(PDF, made.pdf(pages=3, info=INFO))
    assert found == {
        "version": "1.3",
        "encrypted": False,
        "page_count": 3,
        "title": "Grüße aus Köln",
        "author": "Ada",
        "subject": "Looms",
        "keywords": "a, b",
        "creator": "Pen",
        "producer": "pypdf",
        "created_at": "2024-05-01T12:34:56+02:00",
        "modified_at": "2024-05-02",
    }


def test_of_a_pdf_of_fifty_megabytes_little_is_read():
    item = MemoryItem(made.pdf(pages=300, info=INFO, padding=50 << 20))
    assert PDF.look(item)["page_count"] == 300
    assert item.bytes_read < 250_000


def test_a_locked_pdf_says_that_it_is_locked():
    assert look(PDF, made.pdf(info=INFO, password="secret")) == {"version": "1.3", "encrypted": True, "locked": True}


def test_a_pdf_that_only_forbids_things_is_read():
    found = look(PDF, made.pdf(pages=2, info=INFO, password=""))
    assert (found["encrypted"], found["page_count"], found["title"]) == (True, 2, "Grüße aus Köln")


def test_a_pdf_that_is_cut_off_says_so_wherever_it_is_cut():
    whole = made.pdf(pages=5, info=INFO, texts=["some text"] * 5)
    for length in range(8, len(whole) - 8, 37):
        with pytest.raises(Damaged, match="truncated"):
            look(PDF, whole[:length], detected_type="application/pdf")


@pytest.mark.parametrize("gap", range(50, 1000, 90))
def test_a_pdf_with_a_hole_is_repaired_or_damaged_but_never_more(gap: int):
    whole = made.pdf(pages=5, info=INFO)
    try:
        found = look(PDF, whole[:gap] + whole[gap + 60 :], detected_type="application/pdf")
    except (Damaged, TooMuch) as error:
        assert 0 < len(str(error)) < 300
    else:
        assert found["encrypted"] is False


def test_a_jpeg_by_the_name_of_pdf_is_no_pdf():
    with pytest.raises(Damaged, match="does not start"):
        look(PDF, b"\xff\xd8\xff\xe0" + bytes(5000), "a.pdf", detected_type="application/pdf")


def test_the_limit_of_reads_is_the_reason_even_where_the_library_hides_it():
    whole = made.pdf(pages=50, info=INFO, padding=1 << 20)
    broken = whole.replace(b"startxref\n", b"startxref\n1", 1)
    item = Rationed(broken, detected_type="application/pdf", limits=Limits(max_range_bytes=len(broken) // 2))
    with pytest.raises(TooMuch):
        PDF.look(item)


def test_a_pdf_whose_pages_point_at_themselves_ends():
    looping = made.pdf(pages=1).replace(b"/Count 1", b"/Count 0")
    at = looping.index(b"/Kids [ ") + 8
    parent = looping[looping.index(b"/Pages ") + 7 :].split(b" ")[0]
    looping = looping[:at] + parent + looping[at + looping[at:].index(b" ") :]
    with pytest.raises(Damaged):
        look(PDF, looping, detected_type="application/pdf")


def test_a_declared_number_of_pages_that_cannot_be_is_counted():
    lying = made.pdf(pages=2).replace(b"/Count 2", b"/Count 9999999")
    assert look(PDF, lying)["page_count"] == 2


def test_megabytes_of_title_become_a_short_one_or_a_reason():
    assert len(look(PDF, made.pdf(info={"Title": "x" * 2_000_000}))["title"]) == 4096
    assert len(look(OFFICE, made.docx(title="x" * 900_000), "a.docx")["title"]) == 4096
    with pytest.raises(Unsupported, match="more than"):
        look(OFFICE, made.docx(title="x" * 10_000_000), "a.docx")


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ("D:20240501123456Z", "2024-05-01T12:34:56+00:00"),
        ("D:20240501123456-05'30'", "2024-05-01T12:34:56-05:30"),
        ("20240501", "2024-05-01"),
        ("D:2024", "2024"),
        ("2024-05-01T12:34:56Z", "2024-05-01T12:34:56+00:00"),
        ("D:20241399", None),
        ("D:00000000000000", None),
        ("yesterday", None),
        ("D:20240501123456+99'99'", None),
        (None, None),
    ],
)
def test_dates_of_pdf(told: str | None, wanted: str | None):
    assert pdf_date(told) == wanted


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ("2024-05-01T12:34:56.123456789", "2024-05-01T12:34:56.123456"),
        ("2024-05-01T12:34:56+0200", "2024-05-01T12:34:56+02:00"),
        ("2024-05-01", "2024-05-01"),
        ("2024-05", "2024-05"),
        ("1818", "1818"),
        ("2024-02-31T00:00:00Z", None),
        ("9999-99-99", None),
        ("0000", None),
        ("", None),
    ],
)
def test_dates_of_xml(told: str, wanted: str | None):
    assert date(told) == wanted


def test_a_word_document_tells_what_its_properties_say():
    assert look(OFFICE, made.docx()) == {
        "kind": "docx",
        "page_count": 3,
        "title": "Notes on the engine",
        "author": "Ada Lovelace",
        "subject": "Engines",
        "keywords": "loom, notes",
        "created_at": "2024-05-01T12:34:56+00:00",
        "modified_at": "2024-05-02T08:00:00+00:00",
        "modified_by": "Charles",
        "company": "Analytical Engines",
        "application": "Microsoft Office Word",
        "words": 512,
    }


@pytest.mark.parametrize(
    ("folder", "kind"), [("ppt/slides/slide", "pptx"), ("xl/worksheets/sheet", "xlsx")], ids=["slides", "sheets"]
)
def test_slides_and_sheets_are_pages(folder: str, kind: str):
    parts = {f"{folder}{n}.xml": "<x/>" for n in range(1, 8)}
    assert look(OFFICE, made.zipped(parts), detected_type="x/y") == {"kind": kind, "page_count": 7}


def test_an_open_document_and_a_book_tell_what_they_are():
    found = look(OFFICE, made.odt())
    assert (found["kind"], found["page_count"], found["author"], found["words"]) == ("odt", 7, "Ada", 812)
    assert (found["language"], found["created_at"]) == ("de-DE", "2024-05-01T12:34:56.123456")
    found = look(OFFICE, made.epub(chapters=["<p>a</p>", "<p>b</p>"]))
    assert (found["kind"], found["author"], found["chapters"]) == ("epub", "Mary, Percy", 2)
    assert (found["created_at"], found["modified_at"]) == ("1818-01-01", "2024-05-02T08:00:00+00:00")


def test_an_old_document_tells_what_its_properties_say():
    assert look(OFFICE, made.doc()) == {
        "kind": "doc",
        "page_count": 5,
        "title": "Old notes",
        "author": "Ada",
        "created_at": "2024-05-01T12:34:56+00:00",
        "modified_at": "2024-05-01T12:35:56+00:00",
        "company": "Analytical Engines",
        "application": "Word 97",
        "words": 99,
    }


@pytest.mark.parametrize("created", [0, 2**64 - 1, 1])
def test_times_of_nonsense_in_an_old_document_are_left_out(created: int):
    found = look(OFFICE, made.doc(created=created))
    assert "created_at" not in found
    assert found["title"] == "Old notes"


def test_a_list_of_four_billion_nothings_is_not_walked():
    hostile = made.ole_properties({2: (0x1000, 2**32 - 1), 4: (30, b"Ada")})
    assert ole.parse_properties(hostile, ole.SUMMARY) == {"author": "Ada"}


@pytest.mark.parametrize("shift", [0, 8, 31, 255])
def test_an_old_document_with_sectors_of_gigabytes_is_damaged(shift: int):
    broken = bytearray(made.doc())
    broken[30] = shift
    with pytest.raises(Damaged, match="sectors"):
        look(OFFICE, bytes(broken), detected_type="x/y")


def test_a_document_behind_a_password_is_unsupported():
    with pytest.raises(Unsupported, match="password"):
        look(OFFICE, made.ole({"EncryptedPackage": b"x", "EncryptionInfo": b"y"}), "a.docx", detected_type="x/y")


def test_a_word_document_that_is_no_zip_is_damaged():
    with pytest.raises(Damaged, match="not a zip"):
        look(OFFICE, b"just some text", "a.docx", detected_type="x/y")


def test_a_zip_that_is_no_document_is_unsupported():
    with pytest.raises(Unsupported, match="not a document"):
        look(OFFICE, made.zipped({"a.txt": "x"}), "a.docx", detected_type="x/y")


@pytest.mark.parametrize("bomb", [made.BOMB, made.EXTERNAL], ids=["billion laughs", "external entity"])
def test_xml_with_entities_is_refused(bomb: str):
    with pytest.raises(Unsupported, match="entities"):
        look(OFFICE, made.zipped({"word/document.xml": "x", "docProps/core.xml": bomb}), detected_type="x/y")


def test_a_zip_bomb_is_not_unpacked():
    bomb = made.zipped({"word/document.xml": "x", "docProps/core.xml": b"<a>" + bytes(60 << 20)})
    tracemalloc.start()
    try:
        with pytest.raises(Unsupported, match="more than"):
            look(OFFICE, bomb, detected_type="x/y")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_document_of_a_million_parts_is_none():
    with pytest.raises(Unsupported, match="parts"):
        look(OFFICE, made.many_entries(1_000_000), detected_type="x/y")


@pytest.mark.parametrize("extractor", [PDF, OFFICE])
def test_an_empty_object_is_unsupported(extractor):
    with pytest.raises(Unsupported, match="empty"):
        look(extractor, b"", detected_type="application/pdf")
