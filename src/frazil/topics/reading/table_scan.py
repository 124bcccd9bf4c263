"""Reads a range of offsets from one snapshot of a topic's table, in order, each offset once.

Files are taken by their lowest offset and read one row group at a time, the next ones ahead in threads. Where files
overlap (after a sort by another column, or foreign writes) their rows are merged; memory stays within `BUDGET` also
then, at the price of reading such files more than once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from frazil.topics.reading.ahead import ahead
from frazil.topics.reading.row_groups import Piece, depth, pieces
from frazil.topics.reading.table_plan import PlannedFile, TablePlan

#: Bytes that row groups under way may have together, before decoding.
BUDGET = 256 * 1024 * 1024
_THREADS = max(2, min(4, os.cpu_count() or 2))


@dataclass(frozen=True)
class Scanned:
    """Rows in order, and the offset below which nothing follows any more."""

    table: pa.Table
    reached: int


def scan(plan: TablePlan, wanted: pa.Schema, start: int, end: int, *, budget: int = BUDGET) -> Iterator[Scanned]:
    """The rows of [start, end) with these columns, of which one is `offset`.

    Raises:
        FileNotFoundError: a file has gone since the plan was made; plan again.
    """
    groups = _overlapping(plan.between(start, end).files)

    def opened(group: list[PlannedFile]) -> list[Piece]:
        return [piece for file in group for piece in pieces(plan, file, wanted, start, end)]

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="frazil-scan")
    try:
        steps = _steps((found for _, found in ahead(pool, opened, groups, most=4)), start, end, budget)
        loaded = ahead(pool, _load, steps, most=2 * _THREADS, weigh=lambda s: s.piece.size, budget=budget)
        yield from _merged(loaded, end)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _overlapping(files: Sequence[PlannedFile]) -> Iterator[list[PlannedFile]]:
    """Files, ordered by their lowest offset, in groups that have no offset in common with each other."""
    group: list[PlannedFile] = []
    highest = 0
    for file in files:
        if group and file.lower > highest:
            yield group
            group = []
        highest = max(highest, file.upper) if group else file.upper
        group.append(file)
    if group:
        yield group


@dataclass(frozen=True)
class _Step:
    """A piece to read, of which the offsets in [start, end) count; below `following` nothing is read after it."""

    piece: Piece
    start: int
    end: int
    following: int


def _steps(groups: Iterable[list[Piece]], start: int, end: int, budget: int) -> Iterator[_Step]:
    for found in groups:
        ordered = sorted(found, key=lambda p: (p.lower, p.upper))
        for low, high in _windows(ordered, start, end, budget):
            inside = [p for p in ordered if p.lower < high and p.upper >= low]
            for piece, after in zip(inside, [*inside[1:], None], strict=True):
                yield _Step(piece, low, high, high if after is None else max(low, min(after.lower, high)))


def _windows(found: Sequence[Piece], start: int, end: int, budget: int) -> Iterator[tuple[int, int]]:
    """The range of some pieces, cut so that what overlaps fits into the budget."""
    if not found:
        return
    low = max(start, min(p.lower for p in found))
    high = min(end, max(p.upper for p in found) + 1)
    parts = min(-(-depth(found) // budget) if len(found) > 1 else 1, max(1, high - low))
    cuts = [low + (high - low) * i // parts for i in range(parts + 1)]
    yield from pairwise(cuts)


def _load(step: _Step) -> pa.Table:
    return in_order(step.piece.read(), step.start, step.end)


def _merged(loaded: Iterable[tuple[_Step, pa.Table]], end: int) -> Iterator[Scanned]:
    held: pa.Table | None = None
    for step, table in loaded:
        if held is not None:
            table = in_order(pa.concat_tables([held, table]), step.start, step.end)
        ready = int(np.searchsorted(_offsets(table), step.following))
        held = table.slice(ready) if ready < table.num_rows else None
        yield Scanned(table.slice(0, ready), min(step.following, end))


def in_order(table: pa.Table, start: int, end: int) -> pa.Table:
    """The rows with offsets in [start, end), sorted by offset, each offset once."""
    offsets = _offsets(table)
    if len(offsets) < 2 or bool((offsets[1:] > offsets[:-1]).all()):
        first, last = np.searchsorted(offsets, [start, end])
        return table.slice(first, last - first)
    kept, at = np.unique(offsets, return_index=True)
    first, last = np.searchsorted(kept, [start, end])
    return table.take(pa.array(at[first:last]))


def _offsets(table: pa.Table) -> Any:
    return table.column("offset").to_numpy()
