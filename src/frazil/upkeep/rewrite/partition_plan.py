"""Proposes how a large table should be partitioned, by what its manifests say of its files. Nothing is read or changed.

A partition should hold about 128 MiB to 1 GiB: below that a query opens too many files, above it reads too much.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import ManifestContent

from frazil.tables.metadata.bounds import decode_bound
from frazil.upkeep.plans.format_amounts import format_age, format_size
from frazil.upkeep.rewrite.partition import terms_of

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext

_MIB = 1024 * 1024
LEAST, MOST = 128 * _MIB, 1024 * _MIB
#: Smaller tables are read whole in a moment.
SMALL = 1024 * _MIB
_HOURS = {"hour": 1.0, "day": 24.0, "month": 24 * 30.44, "year": 24 * 365.25}
_TIMES = ("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns", "date")
_KEYS = ("long", "int", "string", "uuid", "binary")


@dataclass(frozen=True)
class Span:
    """What a time column's bounds say.

    Attributes:
        column: its name.
        hours: from the first to the last value.
        apart: share of that which the middle file covers: small where rows arrive in the order of time.
    """

    column: str
    hours: float
    apart: float


@dataclass(frozen=True)
class Facts:
    """What is known of a table.

    Attributes:
        current: its spec, as people write it.
        size: bytes of its data files.
        rows: in them.
        partitions: bytes of each partition of the current spec.
        spans: of its time columns.
        keys: columns with many values, the best first.
    """

    current: tuple[str, ...]
    size: int
    rows: int
    partitions: tuple[int, ...]
    spans: tuple[Span, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Proposal:
    """A spec, and why.

    Attributes:
        current: the spec, as people write it.
        proposed: likewise; the same where it is fine.
        reasons: in words, with the numbers.
        size: bytes of the table.
        rows: in it.
        partitions: that it has now.
        median: bytes of the one in the middle.
        expected: bytes of a partition under the proposed spec, about.
    """

    current: list[str]
    proposed: list[str]
    reasons: list[str]
    size: int
    rows: int
    partitions: int
    median: int
    expected: int
    change: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "change", self.current != self.proposed)


def plan(context: UpkeepContext, table: Table) -> Proposal:
    """A spec for the table, with reasons."""
    return propose(collect_facts(context, table))


def propose(facts: Facts) -> Proposal:
    """Pure: the same facts, the same spec."""
    median = int(statistics.median(facts.partitions)) if facts.partitions else 0

    def so(proposed: Sequence[str], expected: float, *reasons: str) -> Proposal:
        return Proposal(
            list(facts.current), list(proposed), list(reasons),
            facts.size, facts.rows, len(facts.partitions), median, int(expected),
        )  # fmt: skip

    size = format_size(facts.size)
    if facts.size < SMALL and not facts.current:
        return so((), facts.size, f"the table has {size}: without partitions it is read whole in a moment")
    if facts.current and LEAST <= median <= MOST:
        return so(facts.current, median, f"half of the partitions hold {format_size(median)} or more, which is fine")
    if facts.current and len(facts.partitions) < 2 and facts.size < SMALL:
        return so(facts.current, median, f"the table has {size} in one partition: too early to tell")
    now = f"{len(facts.partitions):,} partitions of {format_size(median)}, about" if facts.current else "no partitions"
    terms, expected, reasons = _by_time(facts)
    if expected > MOST:
        more, expected, why = _by_key(facts, expected)
        terms, reasons = [*terms, *more], [*reasons, *why]
    if not terms:
        return so(
            facts.current, median or facts.size, f"{size}, {now}; but no column to partition by is known", *reasons
        )
    return so(terms, expected, f"{size}, {now}", *reasons)


def _by_time(facts: Facts) -> tuple[list[str], float, list[str]]:
    if not facts.spans:
        return [], facts.size, ["no time column has bounds in every file"]
    named = " ".join(facts.current)
    # One that is used already stays; else the one along which rows arrive.
    span = min(facts.spans, key=lambda s: (s.column not in named, s.apart))
    for unit in reversed(_HOURS):
        expected = facts.size / max(1.0, span.hours / _HOURS[unit])
        if expected <= MOST or unit == "hour":
            break
    long = format_age(span.hours * 3600)
    if facts.size / max(1.0, span.hours / _HOURS["year"]) < LEAST:
        return [], facts.size, [f"{span.column} spans {long}: even a year would hold less than {format_size(LEAST)}"]
    return (
        [f"{unit}({span.column})"],
        expected,
        [f"{span.column} spans {long}: {format_size(int(expected))} per {unit}"],
    )


def _by_key(facts: Facts, expected: float) -> tuple[list[str], float, list[str]]:
    if not facts.keys:
        return (
            [],
            expected,
            [f"{format_size(int(expected))} are much for one partition, but no key is known to split it by"],
        )
    count = 2 ** max(1, math.ceil(math.log2(expected / (MOST / 2))))
    reason = f"{format_size(int(expected))} are much for one partition: {count} buckets of {facts.keys[0]}"
    return [f"bucket({count}, {facts.keys[0]})"], expected / count, [reason]


def collect_facts(context: UpkeepContext, table: Table) -> Facts:
    """The facts, from the manifests of the current snapshot."""
    snapshot, schema = table.metadata.current_snapshot(), table.schema()
    files: list[DataFile] = []
    partitions: dict[str, int] = defaultdict(int)
    for manifest in context.store.read_manifests(table.io, snapshot.manifest_list) if snapshot is not None else ():
        if manifest.content != ManifestContent.DATA:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            files.append(entry.data_file)
            if manifest.partition_spec_id == table.spec().spec_id:
                partitions[repr(entry.data_file.partition)] += entry.data_file.file_size_in_bytes
    times = [f for f in schema.fields if str(f.field_type) in _TIMES]
    spans = [s for f in times if (s := _span(f.name, f.field_id, f.field_type, files)) is not None]
    return Facts(
        current=tuple(terms_of(schema, table.spec())),
        size=sum(f.file_size_in_bytes for f in files),
        rows=sum(f.record_count for f in files),
        partitions=tuple(partitions.values()),
        spans=tuple(spans),
        keys=tuple(_keys(table)),
    )


def _span(name: str, field_id: int, kind: Any, files: Iterable[DataFile]) -> Span | None:
    lows, highs = [], []
    for file in files:
        low, high = (decode_bound(bounds, field_id, kind) for bounds in (file.lower_bounds, file.upper_bounds))
        if low is None or high is None:
            return None
        lows.append(_hours(kind, low))
        highs.append(_hours(kind, high))
    if not lows:
        return None
    whole = max(highs) - min(lows)
    each = statistics.median(high - low for low, high in zip(lows, highs, strict=True))
    return Span(name, whole, each / whole if whole else 1.0)


def _hours(kind: Any, bound: Any) -> float:
    """Since 1970."""
    value = float(bound)
    if str(kind) == "date":
        return value * 24
    return value / (3.6e12 if str(kind).endswith("_ns") else 3.6e9)


def _keys(table: Table) -> Iterable[str]:
    """Columns that identify a row, then those with most distinct values, as far as statistics tell."""
    schema = table.schema()
    named = [name for i in schema.identifier_field_ids if (name := schema.find_column_name(i)) is not None]
    counts: dict[int, int] = {}
    for found in table.metadata.statistics:
        for blob in found.blob_metadata:
            if len(blob.fields) == 1 and "ndv" in (blob.properties or {}):
                counts[blob.fields[0]] = int((blob.properties or {})["ndv"])
    many = [f for f in schema.fields if str(f.field_type) in _KEYS and counts.get(f.field_id, 0) >= 1000]
    many.sort(key=lambda f: -counts[f.field_id])
    return dict.fromkeys([*named, *(f.name for f in many)])
