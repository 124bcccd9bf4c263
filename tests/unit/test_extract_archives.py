"""Archives: what is in them, and those that want to blow up."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from frazil.extract import Limits, Unsupported
from frazil.extract.archives import tar
from frazil.extract.archives.archive import ARCHIVE
from frazil.extract.window import Damaged
from tests import extract_documents as made
from tests.extract_kit import MemoryItem, look

LONG = "folder/" + "x" * 200 + "/ö.txt"


@contextmanager
def bounded(mebibytes: int, seconds: float = 20) -> Iterator[None]:
    started = time.process_time()
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < mebibytes << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < seconds


def test_a_zip_is_listed():
    assert look(ARCHIVE, made.zipped({"a.txt": "x" * 1000, "b/ö.txt": "y"})) == {
        "format": "zip",
        "entries": 2,
        "total_bytes": 1001,
        "compressed_bytes": 14,
        "encrypted": False,
        "names": ["a.txt", "b/ö.txt"],
        "truncated": False,
    }


def test_of_a_large_zip_only_the_directory_is_read():
    item = MemoryItem(made.zipped({"big": bytes(30 << 20), "b": "x"}, compression=zipfile.ZIP_STORED))
    assert ARCHIVE.look(item)["total_bytes"] == (30 << 20) + 1
    assert item.bytes_read < 10_000


def test_a_zip_behind_a_program_or_with_a_long_comment_is_listed():
    archive = made.zipped({"a": "x"})
    assert look(ARCHIVE, bytes(5000) + archive, detected_type="application/zip")["names"] == ["a"]
    commented = archive[:-2] + (30_000).to_bytes(2, "little") + bytes(30_000)
    assert look(ARCHIVE, commented)["names"] == ["a"]


def test_a_zip_with_a_password_says_so():
    archive = bytearray(made.zipped({"a": "secret"}))
    archive[archive.index(b"PK\1\2") + 8] |= 1
    assert look(ARCHIVE, bytes(archive))["encrypted"] is True


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_tar_is_listed_packed_or_not(mode: str, form: int):
    file = io.BytesIO()
    name = LONG if form != tarfile.USTAR_FORMAT else "folder/" + "x" * 90 + "/o.txt"
    with tarfile.open(fileobj=file, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        for at, member in enumerate(("a", name, "b")):
            info = tarfile.TarInfo(member)
            info.size = at * 1000
            archive.addfile(info, io.BytesIO(bytes(info.size)))
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    found = look(ARCHIVE, file.getvalue(), detected_type="application/x-tar")
    assert found["names"] == ["a", name, "b", "folder/"]
    assert (found["entries"], found["total_bytes"], found["truncated"]) == (4, 3000, False)
    assert found["format"] == "tar" + mode[1:].replace(":", ".")


def test_what_is_in_a_plain_tar_is_skipped():
    item = MemoryItem(made.tarred({f"f{n}": 5 << 20 for n in range(6)}))
    assert ARCHIVE.look(item)["total_bytes"] == 30 << 20
    assert item.bytes_read < 100_000


@pytest.mark.parametrize(
    ("data", "form"),
    [(gzip.compress(b"hi"), "gz"), (bz2.compress(b"hi"), "bz2"), (lzma.compress(b"hi"), "xz")],
    ids=["gz", "bz2", "xz"],
)
def test_one_packed_file_is_an_archive_of_one(data: bytes, form: str):
    found = look(ARCHIVE, data)
    assert (found["format"], found["entries"], found["compressed_bytes"]) == (form, 1, len(data))
    assert found.get("total_bytes") == (2 if form == "gz" else None)


def test_a_gzip_tells_the_name_that_it_has():
    file = io.BytesIO()
    with gzip.GzipFile("notes.txt", "wb", fileobj=file) as packed:
        packed.write(b"x")
    assert look(ARCHIVE, file.getvalue())["names"] == ["notes.txt"]


def test_the_first_thousand_names_are_kept_and_all_are_counted():
    found = look(ARCHIVE, made.zipped({f"file-{n}": "" for n in range(3000)}))
    assert (found["entries"], len(found["names"]), found["truncated"]) == (3000, 1000, False)


def test_a_zip_of_too_many_entries_is_counted_to_a_limit():
    item = MemoryItem(made.many_entries(300_000), detected_type="application/zip")
    with bounded(32):
        found = ARCHIVE.look(item)
    assert (found["entries"], found["truncated"]) == (300_000, True)
    assert item.bytes_read < 6_000_000


def test_a_zip_bomb_is_only_what_it_declares():
    inner = made.zipped({"zeros": bytes(50 << 20)})
    with bounded(4):
        found = look(ARCHIVE, made.zipped({f"{n}.zip": inner for n in range(16)}))
    assert found["entries"] == 16
    assert found["total_bytes"] == 16 * len(inner)


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_a_packed_tar_that_expands_to_gigabytes_is_left_at_a_limit(mode: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tar, "UNPACKED", 8 << 20)
    bomb = made.tarred({"first": 10, "bomb": 40 << 20, "last": 1}, mode)
    with bounded(24):
        found = look(ARCHIVE, bomb)
    assert (found["names"], found["truncated"]) == (["first", "bomb"], True)


def test_an_endless_header_in_a_tar_is_not_taken_into_memory():
    info = tarfile.TarInfo("x")
    info.type = b"x"
    info.size = 1 << 30
    bomb = gzip.compress(made.tarred({"a": 1})[:1024] + info.tobuf(tarfile.USTAR_FORMAT) + bytes(50 << 20))
    with bounded(16):
        found = look(ARCHIVE, bomb)
    assert (found["entries"], found["truncated"]) == (1, True)


def test_a_packed_tar_is_read_to_the_limit_of_bytes():
    data = made.tarred({f"f{n}": 10 for n in range(2000)}, "w:gz")
    item = MemoryItem(data, limits=Limits(max_range_bytes=0))
    assert ARCHIVE.look(MemoryItem(data))["entries"] == 2000
    found = ARCHIVE.look(item)
    assert found["truncated"] is True and found["entries"] < 2000


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9])
def test_an_archive_that_is_cut_off_says_so_or_lists_what_is_there(cut: float):
    archive = made.zipped({f"f{n}": "x" * 50 for n in range(50)})
    with pytest.raises(Damaged):
        look(ARCHIVE, archive[: int(len(archive) * cut)], detected_type="application/zip")
    packed = made.tarred({f"f{n}": 3000 for n in range(50)})
    found = look(ARCHIVE, packed[: int(len(packed) * cut)], detected_type="application/x-tar")
    assert 0 < found["entries"] < 51


@pytest.mark.parametrize(
    ("head", "name"), [(b"7z\xbc\xaf\x27\x1c", "7z"), (b"Rar!\x1a\x07\1\0", "RAR"), (b"\x28\xb5\x2f\xfd", "Zstandard")]
)
def test_what_the_standard_library_cannot_list_is_unsupported(head: bytes, name: str):
    with pytest.raises(Unsupported, match=name):
        look(ARCHIVE, head + bytes(100))


def test_what_is_no_archive_is_damaged_and_what_is_empty_unsupported():
    with pytest.raises(Damaged, match="not a zip"):
        look(ARCHIVE, b"hello", detected_type="application/zip")
    with pytest.raises(Unsupported, match="empty"):
        look(ARCHIVE, b"", detected_type="application/zip")
