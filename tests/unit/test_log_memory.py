"""Memory that is used again, and never while somebody looks at it."""

from __future__ import annotations

import os
import platform
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.log import memory
from frazil.log.memory import read_at


@pytest.fixture(autouse=True)
def no_blocks() -> None:
    memory._free.clear()


@pytest.fixture
def content() -> bytes:
    return random.Random(20261116).randbytes(100_000)


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> Iterator[int]:
    (tmp_path / "file").write_bytes(content)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_block_is_used_again_when_nobody_looks_at_it_any_more(file: int, content: bytes):
    first = read_at(file, 0, 1000)
    address = first.address
    assert first.to_pybytes() == content[:1000]
    del first
    second = read_at(file, 500, 2000)
    assert (second.address, second.to_pybytes()) == (address, content[500:2500])


def test_a_block_stays_as_it_is_while_a_column_looks_at_a_part_of_it(file: int, content: bytes):
    column = pa.Array.from_buffers(pa.uint8(), 100, [None, read_at(file, 0, 1000).slice(900, 100)])
    others = [read_at(file, at, 1000) for at in range(1000, 50_000, 1000)]
    assert bytes(column.to_pylist()) == content[900:1000]
    assert all(
        other.to_pybytes() == content[at : at + 1000]
        for at, other in zip(range(1000, 50_000, 1000), others, strict=True)
    )


def test_only_so_much_is_kept(file: int):
    held = [read_at(file, 0, 10) for _ in range(40)]
    assert len({buffer.address for buffer in held}) == 40
    del held
    assert len(memory._free) == 12


def test_a_file_that_is_shorter_gives_what_it_has(file: int, content: bytes):
    assert read_at(file, 99_990, 1000).to_pybytes() == content[99_990:]
    assert read_at(file, 100_000, 10).size == 0


def test_what_is_larger_than_a_block_is_read_all_the_same(tmp_path: Path):
    large = random.Random(1).randbytes(9 * 1024 * 1024)
    (tmp_path / "large").write_bytes(large)
    with (tmp_path / "large").open("rb") as file:
        assert read_at(file.fileno(), 0, len(large)).to_pybytes() == large


def test_a_read_that_fails_gives_its_block_back(file: int):
    with pytest.raises(OSError, match="Bad file descriptor"):
        read_at(10**6, 0, 10)
    assert len(memory._free) == 1


_FAULTS = """
import resource, sys
from frazil.log.memory import keep_freed_memory

def used_again():
    for _ in range(20):
        held = [bytearray(b"x") * (4 << 20) for _ in range(8)]
        del held

if sys.argv[1] == "keep":
    keep_freed_memory()
used_again()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
used_again()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries of the system keep what they like")
def test_freed_memory_is_kept_where_asked_for():
    faults = {
        how: int(subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, check=True).stdout)
        for how in ("plain", "keep")
    }
    assert faults["plain"] > 10_000  # the system gives the same pages again and again
    assert faults["keep"] < 1_000
