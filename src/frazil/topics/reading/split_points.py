"""Splits a range of offsets so that the files of each part have about the same size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from frazil.tables.reading.ordered_plan import PlannedFile


def find_split_points(
    files: Sequence[PlannedFile], start: int, end: int, target: int, *, least: int = 0
) -> Iterator[int]:
    """Yields offsets strictly inside (start, end) at which a new part begins.

    Args:
        files: the files to read.
        start: the first offset.
        end: the offset to stop before.
        target: approximate bytes of a part.
        least: minimum size that a file counts, because opening it has a cost.
    """
    held, last = 0, start
    for lower, size in sorted(_split_files(files, start, end, target, least)):
        if held and held + size > target and lower > last:
            yield lower
            held, last = 0, lower
        held += size


def _split_files(
    files: Sequence[PlannedFile], start: int, end: int, target: int, least: int
) -> Iterator[tuple[int, int]]:
    """Yields (first offset, bytes) of pieces no larger than the target, as if rows were evenly distributed."""
    for file in files:
        low, high = max(start, file.lower), min(end, file.upper + 1)
        size = max(file.size, least)
        parts = max(1, min(-(-size // target), high - low))
        for i in range(parts):
            yield low + (high - low) * i // parts, -(-size // parts)
