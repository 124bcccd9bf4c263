"""The page at the end of a scan: what it says, and that it fits."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.cells import cell_len

from frazil.cli.content_scan import _headlines
from frazil.cli.content_summary import as_json, lines, print_summary
from frazil.cli.printing import json_text
from frazil.content.query.summary import Share, Summary, _below
from frazil.content.query.words import key_pattern

FULL = Summary(
    shares={
        "kind": [Share("image/jpeg", 4000, 9 << 30), Share("application/pdf", 10, 1 << 20)],
        "camera": [Share("Canon EOS R5", 3000, 8 << 30), Share("東京カメラ 一号機 とても長い名前のカメラ", 7, 0)],
        "year": [Share("2023", 1200, 1 << 30), Share("2024", 2800, 8 << 30)],
        "label": [Share("\x1b[31mred", 3, 10)],
    },
    more={"kind": 0, "camera": 12},
    months=("2019-02", "2024-12"),
    with_place=3456,
    where="-34,18",
    largest=[("a/very/long/path/" * 10 + "end.jpg", 1 << 30), ("b\nc.jpg", 5)],
    copies=12,
    wasted=34_000_000,
    statuses={"ok": 4000, "failed": 3, "pending": 7},
    reasons=[("pdf: PdfReadError: " + "x" * 200, 2), ("image: broken", 1)],
)


@pytest.mark.parametrize("width", [48, 60, 80, 100])
def test_the_page_fits_and_obeys_no_stranger(width: int):
    page = list(lines(FULL, "./photos", width, "█"))
    commands = page.index("try next")
    assert all(cell_len(line) <= width for line in page[:commands]), [line for line in page if cell_len(line) > width]
    assert "\x1b" not in "".join(page) and not any("\n" in line for line in page)
    text = "\n".join(page)
    assert "\\x1b[31mred" in text and "and 12 more" in text and "4,000" in text and "end.jpg" in text
    assert "12 copies, 32.4 MiB could go" in text and "3,456 files" in text


def test_bars_are_as_long_as_their_numbers():
    page = list(lines(FULL, "p", 80, "#"))
    year = [line for line in page if line.strip().startswith(("2023", "2024"))]
    assert [line.count("#") for line in year] == [9, 20]
    assert [line.split()[1] for line in year] == ["1,200", "2,800"]


def test_the_next_commands_find_something_and_what_failed_comes_first():
    page = list(lines(FULL, "my photos", 80, "#"))
    assert page[page.index("try next") + 1 :] == [
        "  frazil content search 'my photos' --status failed",
        "  frazil content extract 'my photos'",
        "  frazil content search 'my photos' --camera 'Canon EOS R5' --taken 2024",
    ]
    plain = Summary(shares={"camera": FULL.shares["camera"], "year": FULL.shares["year"]}, where="-34,18", copies=1)
    page = list(lines(plain, "p", 80, "#"))
    assert page[page.index("try next") + 1 :] == [
        "  frazil content search p --camera 'Canon EOS R5' --taken 2024",
        "  frazil content search p --near=-34,18 --radius 100km",
        "  frazil content duplicates p",
    ]


def test_an_empty_place_has_an_empty_page():
    assert list(lines(Summary(), "p", 80, "#")) == []


def test_json_has_the_same_numbers():
    told = json.loads(json_text(as_json(FULL)))
    assert told["by_camera"][0] == {"name": "Canon EOS R5", "objects": 3000, "bytes": 8 << 30}
    assert (told["first_month"], told["last_month"], told["with_place"]) == ("2019-02", "2024-12", 3456)
    assert told["duplicates"] == {"objects": 12, "bytes": 34_000_000} and told["statuses"]["failed"] == 3
    assert told["failures"][1] == {"reason": "image: broken", "objects": 1}
    assert as_json(Summary())["largest"] == [] and as_json(Summary())["first_month"] is None


def test_a_terminal_without_unicode_gets_other_bars(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", out)
    print_summary(FULL, "p")
    out.flush()
    written = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "####" in written and "\x1b" not in written


REPORT = {
    "bucket": "file:///photos", "prefix": "", "objects": 1, "bytes": 2048, "new": 0, "changed": 0, "gone": 0,
    "resumed": False, "extraction": None, "total_s": 1234.56,
}  # fmt: skip


def test_the_headlines_say_what_was_news():
    assert list(_headlines(REPORT, "file")) == ["file:///photos", "1 file, 2.0 KiB: nothing has changed (1,234.6 s)"]
    inside = {"objects": 5000, "seconds": 10.0, "objects_per_s": 500, "bytes_read": 1 << 20}
    more = {"objects": 5000, "new": 4000, "gone": 3, "resumed": True, "extraction": inside, "prefix": "a/\n"}
    assert list(_headlines(REPORT | more, "object")) == [
        "file:///photos, a/\\n",
        "5,000 objects, 2.0 KiB: 4,000 new, 3 gone (1,234.6 s)",
        "resumed the interrupted scan",
        "extracted 5,000 in 10.0 s: 500 per second, 1.0 MiB read",
    ]


@pytest.mark.parametrize("prefix", ["2024/", "20", "a[1]*?", "!x", "é/ü"])
def test_a_prefix_is_a_pattern_of_all_keys_that_begin_so(prefix: str):
    import re

    pattern = key_pattern(_below(prefix) or "")
    for key, begins in ((prefix, True), (f"{prefix}x", True), (f"{prefix}x/y.jpg", True), (f"z/{prefix}", False)):
        assert bool(re.search(pattern, key)) is begins, (pattern, key)
    assert _below("") is None
