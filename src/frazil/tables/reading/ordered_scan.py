"""Reads a range of offsets from one snapshot of a topic's table, in order, each offset once.

Files are taken by their lowest offset and read one row group at a time, the next ones ahead in threads. Where files
overlap (after a sort by another column, or foreign writes) their rows are merged; memory stays within `BUDGET` also
then, at the price of reading such files more than once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.settings import NetworkSettings
from frazil.tables.reading.ordered_plan import OrderedPlan, PlannedFile
from frazil.tables.reading.prefetch import prefetch
from frazil.tables.reading.retrying import read_with_retry
from frazil.tables.reading.row_groups import Piece, conform, measure_overlap, split_into_pieces

#: Bytes that row groups under way may have together, before decoding.
BUDGET = 256 * 1024 * 1024
Order = Callable[[pa.Table, int, int], pa.Table]
_THREADS = max(2, min(4, os.cpu_count() or 2))


@dataclass(frozen=True)
class OrderedRows:
    """Rows in order, and the offset below which nothing follows any more."""

    table: pa.Table
    reached: int


def scan_in_order(
    plan: OrderedPlan,
    wanted: pa.Schema,
    start: int,
    end: int,
    *,
    budget: int = BUDGET,
    where: pc.Expression | None = None,
    once: bool = True,
    network: NetworkSettings | None = None,
) -> Iterator[OrderedRows]:
    """Yields the rows of [start, end) with these columns, one of which is `offset`.

    After a transient storage error only the failed read is repeated.

    Args:
        plan: the files.
        wanted: the columns.
        start: the first offset.
        end: the offset to stop before.
        budget: bytes that may be read ahead.
        where: only rows for which this holds; its columns are among those wanted.
        once: each offset once; else all rows of an offset, next to each other.
        network: patience with storage.

    Raises:
        FileNotFoundError: a file has gone since the plan was made; plan again.
        OSError: storage does not answer, and patience has ended.
    """
    groups = _overlapping(plan.between(start, end).files)
    patience = network or NetworkSettings()
    order = sort_unique if once else sort_all
    readable = plan.readable(wanted)

    def opened(group: list[PlannedFile]) -> list[Piece]:
        found: list[Piece] = []
        for file in group:
            asked = readable if file.source is None else wanted
            found += read_with_retry(partial(split_into_pieces, plan, file, asked, start, end), patience)
        return found

    def load(step: _Step) -> pa.Table:
        table = conform(read_with_retry(step.piece.read, patience), wanted)
        return order(table if where is None else _matching(table, where), step.start, step.end)

    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="frazil-scan")
    try:
        steps = _steps((found for _, found in prefetch(pool, opened, groups, most=4)), start, end, budget)
        loaded = prefetch(pool, load, steps, most=2 * _THREADS, weigh=lambda s: s.piece.size, budget=budget)
        yield from _merged(loaded, order, end)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _overlapping(files: Sequence[PlannedFile]) -> Iterator[list[PlannedFile]]:
    """Groups files, ordered by lowest offset, so that groups do not overlap."""
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
    """Splits the range of some pieces so that the overlapping ones fit into the budget."""
    if not found:
        return
    low = max(start, min(p.lower for p in found))
    high = min(end, max(p.upper for p in found) + 1)
    parts = min(-(-measure_overlap(found) // budget) if len(found) > 1 else 1, max(1, high - low))
    cuts = [low + (high - low) * i // parts for i in range(parts + 1)]
    yield from pairwise(cuts)


def _merged(loaded: Iterable[tuple[_Step, pa.Table]], order: Order, end: int) -> Iterator[OrderedRows]:
    held: pa.Table | None = None
    for step, table in loaded:
        if held is not None:
            table = order(pa.concat_tables([held, table]), step.start, step.end)
        ready = int(np.searchsorted(_offsets(table), step.following))
        held = table.slice(ready) if ready < table.num_rows else None
        yield OrderedRows(table.slice(0, ready), min(step.following, end))


def _matching(table: pa.Table, where: pc.Expression) -> pa.Table:
    """Filters rows. Payloads are copied only if some rows do not match."""
    small = [f.name for f in table.schema if not (pa.types.is_nested(f.type) or pa.types.is_binary(f.type))]
    numbered = table.select(small).append_column("row number", pa.array(np.arange(table.num_rows)))
    found = numbered.filter(where)["row number"]
    return table if len(found) == table.num_rows else table.take(found)


def sort_unique(table: pa.Table, start: int, end: int) -> pa.Table:
    """Returns the rows with offsets in [start, end), sorted by offset, each offset once."""
    offsets = _offsets(table)
    if len(offsets) < 2 or bool((offsets[1:] > offsets[:-1]).all()):
        first, last = np.searchsorted(offsets, [start, end])
        return table.slice(first, last - first)
    kept, at = np.unique(offsets, return_index=True)
    first, last = np.searchsorted(kept, [start, end])
    return table.take(pa.array(at[first:last]))


def sort_all(table: pa.Table, start: int, end: int) -> pa.Table:
    """Returns the rows with offsets in [start, end), sorted by offset."""
    offsets = _offsets(table)
    if not bool((offsets[1:] >= offsets[:-1]).all()):
        at = np.argsort(offsets, kind="stable")
        table, offsets = table.take(pa.array(at)), offsets[at]
    first, last = np.searchsorted(offsets, [start, end])
    return table.slice(first, last - first)


def _offsets(table: pa.Table) -> Any:
    return table.column("offset").to_numpy()
