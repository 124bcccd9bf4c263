"""Text in pictures: it is read, and nothing is downloaded for that."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from PIL import Image, ImageDraw, ImageFont

from frazil.extract import Unsupported
from frazil.extract.vision import ocr
from frazil.extract.vision.ocr import OCR
from tests.extract_kit import MemoryItem


def written(*lines: str) -> bytes:
    picture = Image.new("RGB", (900, 90 * len(lines) + 60), "white")
    for number, line in enumerate(lines):
        ImageDraw.Draw(picture).text((40, 30 + 90 * number), line, fill="black", font=ImageFont.load_default(48))
    held = io.BytesIO()
    picture.save(held, "PNG")
    return held.getvalue()


def test_text_in_a_picture_is_read_line_by_line():
    told = OCR.look(MemoryItem(written("Invoice 2024-0815", "Total 1,234.50 EUR"), detected_type="image/png"))
    assert told["text"] == "Invoice 2024-0815\nTotal 1,234.50 EUR"
    assert [line["text"] for line in told["lines"]] == ["Invoice 2024-0815", "Total 1,234.50 EUR"]
    assert all(90 < line["confidence"] <= 100 for line in told["lines"])


def test_a_picture_without_text_has_none():
    assert OCR.look(MemoryItem(written(), detected_type="image/png")) == {"text": "", "lines": []}


def test_nothing_is_downloaded_and_nothing_is_printed(tmp_path):
    """In a process in which every connection fails, with a home of its own that has no models."""
    (tmp_path / "picture.png").write_bytes(written("Frazil"))
    code = """
import json, sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        raise SystemExit(f"the network was asked: {event} {arguments}")
sys.addaudithook(refuse)
from frazil.extract.vision.ocr import OCR
from tests.extract_kit import MemoryItem
print(json.dumps(OCR.look(MemoryItem(open(sys.argv[1], "rb").read(), detected_type="image/png"))["text"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "picture.png")],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == "Frazil"
    assert done.stderr == ""


def test_it_runs_only_where_it_is_named():
    assert not OCR.default


def test_without_the_extra_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ocr, "find_spec", lambda name: None if name == "rapidocr" else object())
    assert ocr.available() == "rapidocr not installed; pip install 'frazil[ocr]'"
    with pytest.raises(Unsupported, match=r"pip install 'frazil\[ocr\]'"):
        OCR.look(MemoryItem(written("Frazil"), detected_type="image/png"))
