"""Replicas: syncs against the targets, and against Iceberg's own way, rewrite_table_path, register_table and add_files.

The table of each size is made of hard links and of manifests that are written once, with a thousand entries each. The
replication is a copy by hard links, too: what is measured is the sync.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from benchmarks.lake import memory
from benchmarks.measure import Result, seconds, shown
from benchmarks.targets import verdict
from frazil.catalogs import local_path
from frazil.replica.config import ReplicaConfig
from frazil.replica.many import sync_table, sync_tables
from frazil.replica.report import SyncReport
from frazil.settings import Settings, load_settings
from frazil.spark import spark_session
from frazil.tables import ensure_table
from frazil.tables.relocation.engine import Engine, LocalEngine, SparkEngine
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.type_conversion import convert_rows
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.runs.open_context import open_context

SIZES = (1_000, 10_000, 100_000)
NEW = 100
TABLES, TABLE_FILES = 50, 100
ROUNDS = 7
PER_MANIFEST = 1_000
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("payload", pa.binary())])
#: Seconds of a first sync and of one with 100 new files, by the number of files; None: no target.
FIRST: dict[int, float | None] = {1_000: 5, 10_000: None, 100_000: None}
NEXT: dict[int, float | None] = {1_000: None, 10_000: 3, 100_000: 10}
UNCHANGED = 0.3
#: What the tool that this replaces took: first sync, nothing new, 100 new files.
FORMERLY = {1_000: ("125 s", "5 s", ""), 10_000: ("", "", "225 s")}


def run() -> list[Result]:
    found: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder:
        homes = {size: Home(Path(folder) / str(size)) for size in SIZES}
        for size, home in homes.items():
            home.make(size)
        for size, home in homes.items():
            found += measure_metadata_mode(home, size)
        for size, home in homes.items():
            found += measure_data_files(home, size)
        found += measure_many(Path(folder) / "many")
        found += measure_on_spark(homes)
    return found


class Home:
    """A primary, a copy of its storage, and the catalog of the replica."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.landed = folder / "landed"
        self.primary = load_settings(flags={"home": str(folder / "primary")}, environ={})
        self.settings = load_settings(flags={"home": str(folder / "replica")}, environ={})

    def make(self, count: int, name: str = "bench.t") -> None:
        """Makes a primary of so many small files, and copies it."""
        with open_context(self.primary) as care:
            table = ensure_table(care.store, name, SCHEMA)
            writer = TableWriter(WriteTarget.of(table), "distinct")
            rows = pa.table([pa.array([1], pa.int64()), pa.array([b"x" * 200], pa.binary())], schema=SCHEMA)
            writer.add(convert_rows(rows, writer.schema).rows)
            (file,) = writer.finish()
            add_links(table, file, count)
            Path(local_path(file.file_path) or "").unlink()
        self.copy()

    def grow(self) -> None:
        """Adds new files to the primary, and copies them."""
        with open_context(self.primary) as care:
            table = care.load("bench.t")
            add_links(table, next(iter(table.scan().plan_files())).file, NEW)
        self.copy()

    def copy(self) -> None:
        """Replicates by hard links."""
        for place, _, names in os.walk(self.primary.model.home / "warehouse"):
            target = self.landed / Path(place).relative_to(self.primary.model.home / "warehouse")
            target.mkdir(parents=True, exist_ok=True)
            for name in set(names) - {path.name for path in target.iterdir()}:
                os.link(f"{place}/{name}", target / name)

    @property
    def source(self) -> Path:
        return self.primary.model.home / "warehouse" / "bench" / "t"

    def config(self, name: str = "bench.t", **options: Any) -> ReplicaConfig:
        place = options.pop("replicated_path", str(self.landed / name.replace(".", "/")))
        return ReplicaConfig(name, self.settings.catalog().name, place, str(self.folder / "warehouse"), **options)

    @property
    def data_files(self) -> ReplicaConfig:
        path = str(self.landed / "bench" / "t" / "data")
        return self.config("bench.files", mode="data-files", replicated_path=path)


def add_links(table: Table, file: DataFile, count: int) -> None:
    """Adds copies of a file, a thousand in each snapshot, which are hard links to the first of them."""
    source, folder = Path(local_path(file.file_path) or ""), Path(local_path(table.location()) or "") / "data"
    for start in range(0, count, PER_MANIFEST):
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
            first = folder / f"{uuid.uuid4()}.first"
            shutil.copyfile(source, first)
            for _ in range(start, min(count, start + PER_MANIFEST)):
                link = copy.copy(file)
                link._data = [*file._data]  # a DataFile has no setter for its path
                link[1] = f"file://{folder}/{uuid.uuid4()}.parquet"
                link.spec_id = 0
                os.link(first, link.file_path.removeprefix("file://"))
                update.append_data_file(link)
            first.unlink()
        table.refresh()


def measure_metadata_mode(home: Home, size: int) -> Iterator[Result]:
    first = _run_step("metadata", home)
    wanted, before = FIRST[size], FORMERLY.get(size, ("", "", ""))
    yield Result(
        f"first sync, {size:,} files",
        f"{shown(first['seconds'])}, {size / first['cpu']:,.0f} entries/s per core",
        before[0] and f"formerly {before[0]}",
        f"{shown(first['cpu'])} of a processor with imports, {first['mib']:,.0f} MiB at most in memory",
        verdict(first["seconds"] <= wanted, f"≤ {wanted} s") if wanted else "",
    )
    yield from _measure_next(home, home.config(), size, "")


def measure_data_files(home: Home, size: int) -> Iterator[Result]:
    first = _run_step("data-files", home)
    yield Result(
        f"first sync of bare Parquet files, {size:,} files",
        f"{shown(first['seconds'])}, {size / first['cpu']:,.0f} files/s per core",
        ratio=f"{shown(first['cpu'])} of a processor with imports, {first['mib']:,.0f} MiB at most in memory",
    )
    yield from _measure_next(home, home.data_files, size, " of bare Parquet files")


def _measure_next(home: Home, config: ReplicaConfig, size: int, what: str) -> Iterator[Result]:
    before = FORMERLY.get(size, ("", "", ""))
    with open_context(home.settings) as care, LocalEngine() as engine:
        _sync(care, config, engine, "unchanged")  # connects, and imports
        spent = time.process_time()
        taken = min(_seconds_of(care, config, engine, "unchanged") for _ in range(ROUNDS))
        spent = (time.process_time() - spent) / ROUNDS
        yield Result(
            f"sync{what} that finds nothing new, {size:,} files",
            shown(taken),
            before[1] and f"formerly {before[1]}",
            f"{shown(spent)} of a processor",
            verdict(taken <= UNCHANGED, f"≤ {UNCHANGED} s"),
        )
        home.grow()
        spent = time.process_time()
        taken = _seconds_of(care, config, engine, "updated")
        spent = time.process_time() - spent
    wanted = NEXT[size]
    yield Result(
        f"sync{what} with {NEW} new files, {size:,} files",
        shown(taken),
        before[2] and f"formerly {before[2]}",
        f"{shown(spent)} of a processor",
        verdict(taken <= wanted, f"≤ {wanted} s") if wanted else "",
    )


def measure_many(folder: Path) -> Iterator[Result]:
    home = Home(folder)
    names = [f"bench.t{number:02}" for number in range(TABLES)]
    for name in names:
        home.make(TABLE_FILES, name)
    configs = [home.config(name) for name in names]
    for what, action in (("first sync", "created"), ("nothing new", "unchanged")):
        began = time.perf_counter()
        runs = sync_tables(home.settings, configs, engine="local")
        taken = time.perf_counter() - began
        assert [one.report and one.report.action for one in runs] == [action] * TABLES, [one.error for one in runs]
        at_once = home.settings.model.replica.tables_at_once
        yield Result(f"{TABLES} tables of {TABLE_FILES} files, {at_once} at once, {what}", shown(taken))


# -- Spark -------------------------------------------------------------------------------------------------------------


def measure_on_spark(homes: dict[int, Home]) -> Iterator[Result]:
    """The same work on Spark's tasks, and by Iceberg's procedures, in one session."""
    for size, home in homes.items():
        settings = load_settings(flags={"home": str(home.folder / "primary"), "spark.driver_memory": "3g"}, environ={})
        with spark_session(settings) as spark:
            spark.sql("SELECT 1").collect()
            theirs = seconds(lambda: _register_as_iceberg_does(spark, home, settings))  # noqa: B023 - called at once
            for config, what, against in (
                (home.config("bench.s"), "", f"rewrite_table_path and register_table {shown(theirs)}"),
                (home.data_files, " of bare Parquet files", ""),
            ):
                yield from _measure_spark_engine(spark, home, config, what, against, theirs if against else 0, size)
            added = seconds(lambda: _add_files(spark, home))  # noqa: B023 - called at once
            yield Result(f"add_files of {size:,} files, by Iceberg", shown(added))


def _measure_spark_engine(
    spark: SparkSession, home: Home, config: ReplicaConfig, what: str, against: str, theirs: float, size: int
) -> Iterator[Result]:
    options = {"replicated_path": str(home.landed / "bench" / "t")} if not what else {}
    name = "bench.spark_files" if what else "bench.spark"
    chosen = ReplicaConfig(**{**vars(config), "name": name, **options})
    with open_context(home.settings, spark=lambda: spark) as care:
        mine = _seconds_of(care, chosen, SparkEngine(lambda: spark), "created")
    yield Result(
        f"first sync{what} by Spark's tasks, {size:,} files",
        shown(mine),
        against,
        f"{theirs / mine:.1f}×" if theirs else "",
    )


def _register_as_iceberg_does(spark: SparkSession, home: Home, settings: Settings) -> None:
    catalog, staging = settings.catalog().name, home.folder / "staging"
    target = f"file://{home.landed}/bench/t"
    spark.sql(
        f"CALL {catalog}.system.rewrite_table_path(table => 'bench.t', source_prefix => 'file://{home.source}', "
        f"target_prefix => '{target}', staging_location => 'file://{staging}')"
    ).collect()
    # What a user does with the list of files: copies the staged metadata to the target.
    made = home.folder / "theirs"
    shutil.copytree(staging, made)
    newest = max((path for path in made.rglob("*.metadata.json")), key=lambda path: path.name)
    spark.sql(f"CALL {catalog}.system.register_table('bench.theirs', 'file://{newest}')").collect()


def _add_files(spark: SparkSession, home: Home) -> None:
    spark.sql("CREATE TABLE bench.added (id BIGINT, payload BINARY) USING iceberg")
    spark.sql(
        "CALL frazil.system.add_files(table => 'bench.added', check_duplicate_files => false, "
        f"source_table => '`parquet`.`file://{home.landed}/bench/t/data`')"
    ).collect()


# -- steps in processes of their own -----------------------------------------------------------------------------------


def _run_step(mode: str, home: Home) -> dict[str, float]:
    """Runs a first sync in a new process, so that its memory is its own."""
    command = [sys.executable, "-m", "benchmarks.replica", mode, str(home.folder)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main(mode: str, folder: str) -> None:
    """Runs a first sync, and prints what it took."""
    home = Home(Path(folder))
    config = home.config() if mode == "metadata" else home.data_files
    spent = time.process_time()
    with open_context(home.settings) as care, LocalEngine() as engine:
        taken = _seconds_of(care, config, engine, "created")
        highest = memory(os.getpid())[1]
    workers = os.times()
    cpu = time.process_time() - spent + workers.children_user + workers.children_system
    print(json.dumps({"seconds": taken, "mib": highest, "cpu": cpu}))


def _sync(care: UpkeepContext, config: ReplicaConfig, engine: Engine, action: str) -> SyncReport:
    report = sync_table(care, config, engine)
    assert report.action == action, report
    return report


def _seconds_of(care: UpkeepContext, config: ReplicaConfig, engine: Engine, action: str) -> float:
    sync: Callable[[], object] = lambda: _sync(care, config, engine, action)  # noqa: E731 - it is timed
    return seconds(sync)


if __name__ == "__main__":
    main(*sys.argv[1:])
