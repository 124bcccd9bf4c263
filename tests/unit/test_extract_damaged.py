"""Every extractor of files on thousands of broken files: an answer or a reason, quickly, with little memory."""

from __future__ import annotations

import gzip
import random
import time

import pytest

from frazil.extract import Extractor, TooMuch, Unsupported
from frazil.extract.archives.archive import ARCHIVE
from frazil.extract.documents.office import OFFICE, PACKAGES
from frazil.extract.documents.pdf import PDF
from frazil.extract.documents.text import TEXT, language
from frazil.extract.engine.source import ObjectGone
from frazil.extract.media.audio import AUDIO
from frazil.extract.media.video import VIDEO
from frazil.extract.window import Damaged
from tests import extract_documents as made
from tests.extract_kit import MemoryItem

PDFS = [made.pdf(pages=3, info={"Title": "T"}, texts=["hello there", "b"]), made.pdf(pages=2, password="x")]
DOCUMENTS = [made.docx(), made.odt(), made.epub()]
OLD = [made.doc(), made.ole({"EncryptedPackage": b"x"})]
MEDIA = [
    made.wav(seconds=0.1),
    made.mp3(frames=5, tags={"TIT2": "x"}, cover=b"y"),
    made.mp4(title="x", media=200, quicktime={"com.apple.quicktime.make": "A"}),
    made.matroska(),
    made.flac(tags={"TITLE": "x"}),
    made.opus(tags={"TITLE": "x"}),
    made.avi(),
    made.aiff(),
    made.wma(),
    made.aac(frames=5),
]
ARCHIVES = [
    made.zipped({"a": "x", "b": "y" * 100}),
    *(made.tarred({"a": 10, "b" * 120: 600}, mode) for mode in ("w", "w:gz", "w:bz2", "w:xz")),
    gzip.compress(b"hello"),
]
TEXTS = [b"<html><p>hi &amp; bye<script>x</script>", "Ünïcode".encode() * 9, "text".encode("utf-16") * 9]

CASES = {
    "pdf": (PDF, PDFS, "application/pdf"),
    "text of pdf": (TEXT, PDFS, "application/pdf"),
    "office": (OFFICE, DOCUMENTS + OLD, PACKAGES[0]),
    "text of office": (TEXT, DOCUMENTS, PACKAGES[0]),
    "audio": (AUDIO, MEDIA, "audio/mpeg"),
    "video": (VIDEO, MEDIA, "video/mp4"),
    "archive": (ARCHIVE, ARCHIVES + DOCUMENTS, "application/zip"),
    "text": (TEXT, TEXTS, "text/html"),
}


def broken(rng: random.Random, data: bytes) -> bytes:
    """The data with a piece cut off, taken out or doubled, with bytes changed, or nothing of it at all."""
    way = rng.randrange(6)
    a = rng.randrange(len(data))
    b = rng.randrange(a, len(data) + 1)
    if way == 0:
        return data[:a]
    if way == 1:
        return rng.randbytes(rng.randrange(2000))
    if way == 2:
        return data[:a] + data[b:]
    if way == 3:
        return data[:a] + data[a : a + rng.randrange(200)] * rng.randrange(20) + data[a:]
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 20)):
        changed[rng.randrange(len(data))] = rng.choice((0, 255, 128, rng.randrange(256)))
    return bytes(changed)


@pytest.mark.parametrize(("extractor", "seeds", "media"), CASES.values(), ids=CASES)
def test_broken_files_are_answered_with_a_reason_in_little_time(extractor: Extractor, seeds: list[bytes], media: str):
    language("the model of languages is loaded once, and not counted here")
    rng = random.Random(20240501)
    answers: dict[str, int] = {}
    for _ in range(400):
        data = broken(rng, rng.choice(seeds))
        started = time.process_time()
        try:
            extractor.look(MemoryItem(data, detected_type=media))
            answer = "ok"
        except (Damaged, Unsupported, TooMuch) as error:
            answer = type(error).__name__
            assert 0 < len(str(error)) < 400
            assert "\n" not in str(error)
        answers[answer] = answers.get(answer, 0) + 1
        assert time.process_time() - started < 5
    assert len(answers) > 1, answers


@pytest.mark.parametrize(("extractor", "seeds", "media"), CASES.values(), ids=CASES)
def test_no_extractor_of_files_needs_to_read_all_of_what_it_does_not_know(
    extractor: Extractor, seeds: list[bytes], media: str
):
    item = MemoryItem(random.Random(1).randbytes(4 << 20), detected_type=media)
    with pytest.raises((Damaged, Unsupported)):
        extractor.look(item)
    assert item.bytes_read <= (1 << 20) + 4096


class Failing(MemoryItem):
    """An object that is gone after some reads."""

    def __init__(self, data: bytes, media: str, reads: int) -> None:
        super().__init__(data, detected_type=media)
        self._left = reads

    def read(self, start: int, length: int) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ObjectGone("the object does not exist any more")
        return super().read(start, length)


@pytest.mark.parametrize(("extractor", "seeds", "media"), CASES.values(), ids=CASES)
def test_an_object_that_goes_away_is_never_called_damaged(extractor: Extractor, seeds: list[bytes], media: str):
    large = [made.pdf(pages=60, texts=["text"] * 60, padding=1 << 20)] if media == "application/pdf" else []
    for data in large or [*seeds[:3], *OLD[: extractor is OFFICE]]:
        counted = MemoryItem(data, detected_type=media)
        extractor.look(counted)
        for reads in range(len(counted.reads)):
            with pytest.raises(ObjectGone):
                extractor.look(Failing(data, media, reads))
