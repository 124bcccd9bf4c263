"""Cuts a range of offsets where the files that hold it have about as many bytes on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frazil.tables.reading.ordered_plan import PlannedFile


def find_split_points(
    files: Sequence[PlannedFile], start: int, end: int, target: int, *, least: int = 0
) -> Iterator[int]:
    """Offsets strictly inside (start, end) at which a new part begins.

    Args:
        files: what is to be read.
        start: the first offset.
        end: the offset to stop before.
        target: bytes of a part, about.
        least: what a file counts at least, because to open it costs something too.
    """
    held, last = 0, start
    for lower, size in sorted(_atoms(files, start, end, target, least)):
        if held and held + size > target and lower > last:
            yield lower
            held, last = 0, lower
        held += size


def _atoms(files: Sequence[PlannedFile], start: int, end: int, target: int, least: int) -> Iterator[tuple[int, int]]:
    """(first offset, bytes) of pieces no larger than the target, as if rows lay evenly in their file."""
    for file in files:
        low, high = max(start, file.lower), min(end, file.upper + 1)
        size = max(file.size, least)
        parts = max(1, min(-(-size // target), high - low))
        for i in range(parts):
            yield low + (high - low) * i // parts, -(-size // parts)
