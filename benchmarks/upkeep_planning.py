"""Planning: how long it takes to look at a table of 100,000 files and to say what is to be done."""

from __future__ import annotations

import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from benchmarks.measure import Result, shown
from benchmarks.targets import verdict
from frazil.catalogs import open_catalog
from frazil.settings import Settings, load_settings
from frazil.tables import TableStore, ensure_table
from frazil.tables.manifest_writer import ManifestWriter
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.plans.census import take
from frazil.upkeep.plans.manifest_stats import ManifestStatsCache
from frazil.upkeep.plans.plan import plan
from frazil.upkeep.policy import policy_for

FILES = 100_000
PARTITIONS = 50
COLUMNS = 10
ROUNDS = 3
TARGET_S = 3.0


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder:
        return list(planning(Path(folder)))


def planning(folder: Path) -> Iterator[Result]:
    """A table without its data: manifests say all that a plan needs, and point to files that are not there."""
    settings = load_settings(flags={"home": str(folder)}, environ={})
    chosen = settings.catalog()
    with TableStore(open_catalog(chosen), chosen) as store:
        care = UpkeepContext(settings, chosen, store, _no_jvm, threading.Event())
        for what, per_manifest, merged in (
            ("as Frazil and PyIceberg write them, 100 manifests", 1000, False),
            ("as Frazil merges them, 100 manifests", 1000, True),
            ("in 5,000 small manifests", 20, False),
        ):
            table = _filled(store, f"bench.files_{per_manifest}_{merged}".lower(), per_manifest, merged=merged)
            yield from _measured(care, settings, table, what)


def _measured(care: UpkeepContext, settings: Settings, table: Table, what: str) -> Iterator[Result]:
    policy, known = policy_for(settings, table), ManifestStatsCache()

    def ours(tallies: ManifestStatsCache | None = None) -> None:
        census = take(care, table, policy, known=tallies)
        assert census.files == FILES
        assert plan(census, policy)[0].kind == "compact"

    def theirs() -> None:
        snapshot = table.current_snapshot()
        assert snapshot is not None
        manifests = care.store.read_manifests(table.io, snapshot.manifest_list)
        assert sum(len(m.fetch_manifest_entry(table.io)) for m in manifests) == FILES

    mine, bare = _best(ours), _best(theirs)
    yield Result(
        f"plan for {FILES:,} files, {what}",
        f"{shown(mine[0])} ({shown(mine[1])} CPU)",
        f"PyIceberg reads the entries in {shown(bare[0])} ({shown(bare[1])} CPU)",
        f"{mine[1] / bare[1]:.2f}× CPU",
        verdict(mine[0] < TARGET_S, f"< {TARGET_S:g} s"),
    )
    ours(known)
    again = _best(lambda: ours(known))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Result(f"the same again, {what}", f"{shown(again[0])}, {memory:,.0f} MiB at most in memory")


def _best(action: Callable[[], None]) -> tuple[float, float]:
    """Seconds by the clock and of the processor, of the quickest round."""
    found = []
    for _ in range(ROUNDS):
        began, worked = time.perf_counter(), time.process_time()
        action()
        found.append((time.perf_counter() - began, time.process_time() - worked))
    return min(found)


def _filled(store: TableStore, name: str, per_manifest: int, *, merged: bool) -> Table:
    columns = [pa.field("offset", pa.int64()), pa.field("publish_time", pa.timestamp("us", "UTC"))]
    columns += [pa.field(f"column_{n}", pa.string()) for n in range(COLUMNS - 2)]
    table = ensure_table(store, name, pa.schema(columns), partition=["day(publish_time)"])
    table.append(pa.table([pa.nulls(1, f.type) for f in columns], schema=pa.schema(columns)))
    shop = ManifestWriter(store, table)
    made: list[ManifestFile] = []
    for start in range(0, FILES, per_manifest):
        manifest = shop.added(0, [_file(table, n) for n in range(start, start + per_manifest)])
        manifest.sequence_number = 1
        made.append(shop.merged(0, [manifest]) if merged else manifest)
        made[-1].sequence_number = made[-1].min_sequence_number = 1
    snapshot = table.current_snapshot()
    assert snapshot is not None
    # The list of the one snapshot that there is: it is never read from disk.
    store.cache_manifests(snapshot.manifest_list, tuple(made))
    return table


def _file(table: Table, number: int) -> DataFile:
    """Small, middling and large files, in partitions by turns, with bounds of every column."""
    size = (20_000 + number % 977, 2_000_000 + number, 60_000_000 + number)[number % 3]
    every: dict[str, Any] = {
        name: {column: 1000 + column for column in range(1, COLUMNS + 1)}
        for name in ("column_sizes", "value_counts", "null_value_counts")
    }
    day = 20_454 + number % PARTITIONS
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/publish_time_day={day}/{number:05d}-0a3f1b4c-77aa-4f55-8c1d.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(day),
        record_count=1000,
        file_size_in_bytes=size,
        **every,
        nan_value_counts={},
        lower_bounds=dict.fromkeys(range(1, COLUMNS + 1), b"12345678"),
        upper_bounds=dict.fromkeys(range(1, COLUMNS + 1), b"12345678"),
        key_metadata=None,
        split_offsets=[4],
        equality_ids=None,
        sort_order_id=None,
    )


def _no_jvm() -> Any:
    raise AssertionError("a plan needs no JVM")
