"""Backup and restore: copying against rclone, increments, relocation against rewrite_table_path, memory, overhead."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from benchmarks.lake import memory
from benchmarks.measure import Result, shown
from benchmarks.targets import verdict
from frazil.backup.create import create_backup
from frazil.backup.repository import Repository
from frazil.backup.restore import run_restore
from frazil.backup.restore_plan import RestoreTarget, plan_restore
from frazil.settings import Settings, load_settings
from frazil.spark import spark_session
from frazil.storage.bulk import read_file, sync_file_system
from frazil.tables import ensure_table
from frazil.tables.relocation.engine import open_engine
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.type_conversion import convert_rows
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.runs.open_context import open_context
from tests.services.debian import find_program, install_packages
from tests.services.kit import Services

FILES, FILE_BYTES = 2_000, 1 << 20
#: Data files of the large tables: hard links to so many distinct ones.
DISTINCT = 100
SIZES = (1_000, 10_000, 100_000)
PER_MANIFEST = 1_000
ROUNDS = 3
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("payload", pa.binary())])


def run() -> list[Result]:
    found: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder:
        found += _copying(Path(folder), "a local disk", {})
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder, Services() as services:
        server = services.seaweedfs
        flags = {f"s3.{name}": value for name, value in server.access.settings().items()}
        for bucket in ("warehouse", "backups"):
            server.make_bucket(bucket)
        flags |= {"catalog.warehouse": "s3://warehouse", "backup.bucket": "s3://backups/repository"}
        found += _copying(Path(folder), "the local S3 server", flags)
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder:
        found += _many_files(Path(folder))
    return found


# -- 2 GiB in 2,000 files ----------------------------------------------------------------------------------------------


def _copying(folder: Path, where: str, flags: Mapping[str, str]) -> Iterator[Result]:
    settings = load_settings(flags={"home": str(folder / "home"), **flags}, environ={})
    rclone = _Rclone(settings)
    with open_context(settings) as care:
        table = ensure_table(care.store, "bench.t", SCHEMA)
        _append(table, FILES, FILE_BYTES)
        full, bare, floor = _Times(), _Times(), _Times()
        for number in range(ROUNDS):
            bare.add(lambda n=number: rclone.copy(table.location(), f"rclone-{n}"))  # type: ignore[misc]
            rclone.purge(f"rclone-{number}")
            if not flags:
                floor.add(lambda: _copy_durably(Path(table.location().removeprefix("file://")), folder / "floor"))
                shutil.rmtree(folder / "floor")
            repository = _open(settings, f"full-{number}")
            full.add(lambda r=repository: create_backup(care, r, ["bench.t"], engine="local"))  # type: ignore[misc]
        mine, theirs = full.seconds, bare.seconds
        size = FILES * FILE_BYTES / 2**20
        if not flags:
            yield Result(
                f"processor time of that backup on {where}",
                f"{full.processor:.1f} s",
                f"rclone copy {bare.processor:.1f} s; bare loop with SHA-256 and one sync {floor.processor:.1f} s",
                f"{size / floor.seconds:,.0f} MiB/s in the bare loop",
            )
        yield Result(
            f"backup of 2 GiB in {FILES:,} files on {where}",
            f"{size / mine:,.0f} MiB/s",
            f"rclone copy {size / theirs:,.0f} MiB/s",
            f"{theirs / mine:.2f}×",
            verdict(theirs / mine >= 0.8, "≥ 0.8×"),
        )
        _append(table, FILES // 100, FILE_BYTES)
        record = create_backup(care, repository, ["bench.t"], engine="local", name="warm-up")
        _append(table, FILES // 100, FILE_BYTES)
        began = time.perf_counter()
        record = create_backup(care, repository, ["bench.t"], engine="local", name="second")
        taken = time.perf_counter() - began
        written = sum(file.file_size_in_bytes for file in _newest_files(care.load("bench.t")))
        exact = record.tables[0].new_bytes == written
        yield Result(
            f"the next backup after 1 % new files, {where}",
            shown(taken),
            f"full {shown(mine)}",
            f"{record.tables[0].new_bytes:,} bytes copied, {'as many as' if exact else 'not as'} new ones",
            verdict(exact and taken <= 0.5 + 0.05 * mine, "≤ 0.5 s + 5 %, bytes copied = new bytes"),
        )
        restored = _seconds(lambda: _restore(care, repository, "second", "bench.restored"))
        yield Result(
            f"restore of 2 GiB on {where}", f"{size / restored:,.0f} MiB/s", f"rclone copy {size / theirs:,.0f}"
        )
        if not flags:
            held = sum(
                file.stat().st_size
                for file in Path(repository.root.removeprefix("file://")).rglob("*")
                if file.is_file()
            )
            data = (FILES + 2 * (FILES // 100)) * _size_of(table)
            yield Result("repository over the bytes of the data, 3 backups", f"{held / data - 1:.2%} more")


class _Times:
    """Seconds and processor time of an action, of several rounds."""

    def __init__(self) -> None:
        self._rounds: list[tuple[float, float]] = []

    def add(self, action: Callable[[], Any]) -> None:
        before = os.times()
        taken = _seconds(action)
        self._rounds.append((taken, sum(os.times()[:4]) - sum(before[:4])))

    @property
    def seconds(self) -> float:
        return sorted(taken for taken, _ in self._rounds)[len(self._rounds) // 2]

    @property
    def processor(self) -> float:
        """The least of all rounds: other work on the machine adds to it."""
        return min(spent for _, spent in self._rounds)


def _copy_durably(source: Path, target: Path) -> None:
    """The floor: what a backup guarantees for each file, and nothing else."""
    target.mkdir()

    def copy(path: Path) -> None:
        digest, temporary = hashlib.sha256(), target / f"{path.name}.tmp"
        with temporary.open("wb", buffering=0) as file:
            for chunk in read_file(path):
                digest.update(chunk)
                file.write(chunk)
        temporary.rename(target / digest.hexdigest())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(copy, (path for path in source.rglob("*") if path.is_file())))
    sync_file_system(target)


class _Rclone:
    """Copies a folder the way rclone does, with its defaults."""

    def __init__(self, settings: Settings) -> None:
        if find_program("rclone") is None:
            install_packages("rclone")
        s3 = settings.model.s3
        self._env = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}  # it cannot use one
        self._target = str(settings.model.home)
        if s3.endpoint:
            # Two names for one server: within one, rclone would have the server copy, which ours does only where the
            # server states a SHA-256.
            self._target = "target:backups"
            access = {
                "TYPE": "s3",
                "PROVIDER": "Other",
                "ENDPOINT": s3.endpoint,
                "ACCESS_KEY_ID": s3.access_key or "",
                "SECRET_ACCESS_KEY": s3.secret_key.get_secret_value() if s3.secret_key else "",
                "REGION": s3.region,
                "NO_CHECK_BUCKET": "true",
            }
            for remote in ("SOURCE", "TARGET"):
                self._env |= {f"RCLONE_CONFIG_{remote}_{name}": value for name, value in access.items()}

    def copy(self, source: str, name: str) -> None:
        place = source.removeprefix("file://") if not source.startswith("s3://") else f"source:{source[5:]}"
        self._run("copy", place, f"{self._target}/{name}")

    def purge(self, name: str) -> None:
        self._run("purge", f"{self._target}/{name}")

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(["rclone", *arguments], env=self._env, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]


def _append(table: Table, count: int, size: int) -> None:
    """Adds files of random bytes, each of one row group, in one snapshot."""
    chance = np.random.default_rng(time.time_ns())
    table.refresh()
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        for number in range(count):
            payload = pa.array([chance.bytes(size // 4) for _ in range(4)], pa.binary())
            writer = TableWriter(WriteTarget.of(table), f"{time.time_ns():x}-{number}")
            writer.add(
                convert_rows(pa.table([pa.array(range(4), pa.int64()), payload], schema=SCHEMA), writer.schema).rows
            )
            for file in writer.finish():
                update.append_data_file(file)
    table.refresh()


def _newest_files(table: Table) -> list[DataFile]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id]
    return [
        e.data_file
        for m in manifests
        for e in m.fetch_manifest_entry(table.io)
        if e.snapshot_id == snapshot.snapshot_id
    ]


def _size_of(table: Table) -> int:
    return _newest_files(table)[0].file_size_in_bytes


# -- relocation of many files ------------------------------------------------------------------------------------------


def _many_files(folder: Path) -> Iterator[Result]:
    highest: dict[int, dict[str, float]] = {}
    for size in SIZES:
        home = folder / f"home-{size}"
        settings = load_settings(flags={"home": str(home)}, environ={})
        with open_context(settings) as care:
            _links(care, size)
        highest[size] = {}
        for step in ("create", "restore"):
            # In processes of their own: what one has held is not counted for the other.
            command = [sys.executable, "-m", "benchmarks.backup", step, str(home)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            highest[size][step] = found["mib"]
            yield Result(
                f"{step} of a table with {size:,} data files",
                f"{found['seconds']:.1f} s, {size / found['seconds']:,.0f} files/s",
                ratio=f"{found['mib']:,.0f} MiB at most in memory",
            )
    for step in ("create", "restore"):
        ratio = highest[SIZES[-1]][step] / highest[SIZES[0]][step]
        yield Result(
            f"memory of {step}, {SIZES[0]:,} → {SIZES[-1]:,} files",
            f"{highest[SIZES[0]][step]:,.0f} → {highest[SIZES[-1]][step]:,.0f} MiB",
            ratio=f"{ratio:.2f}×",
            target=verdict(ratio <= 1.3, "≤ 1.3×"),
        )
    yield from _against_spark(folder / f"home-{SIZES[-1]}")


def _against_spark(home: Path) -> Iterator[Result]:
    """Relocation alone, of all manifests of a table, by our function and by Iceberg's procedure."""
    from frazil.tables.relocation.manifests import relocate_manifest
    from frazil.tables.relocation.prefixes import PrefixMap

    settings = load_settings(
        flags={"home": str(home), "spark.master": "local[1]", "spark.driver_memory": "4g"}, environ={}
    )
    with open_context(settings) as care:
        table = care.load("bench.t")
        snapshot = table.current_snapshot()
        assert snapshot is not None
        manifests = [Path(m.manifest_path.removeprefix("file://")) for m in snapshot.manifests(table.io)]
        source = table.location()
    prefixes = PrefixMap([(source, "file:///elsewhere/t")])
    target = home / "relocated"
    target.mkdir()

    def ours() -> None:
        for manifest in manifests:
            (target / manifest.name).write_bytes(relocate_manifest(manifest.read_bytes(), prefixes).data)

    mine = min(_seconds(ours) for _ in range(ROUNDS))
    with spark_session(settings) as spark:
        spark.sql("SELECT 1").collect()

        def theirs() -> None:
            spark.sql(
                "CALL frazil.system.rewrite_table_path(table => 'bench.t', "
                f"source_prefix => '{source}', target_prefix => 'file:///elsewhere/t', "
                f"staging_location => 'file://{home}/staging-{time.time_ns()}')"
            ).collect()

        spent = min(_seconds(theirs) for _ in range(2))
    yield Result(
        f"relocation of {SIZES[-1]:,} manifest entries, one core",
        f"{SIZES[-1] / mine:,.0f} entries/s",
        f"rewrite_table_path on local[1] {SIZES[-1] / spent:,.0f}/s",
        f"{spent / mine:.1f}×",
        verdict(spent / mine >= 5, "≥ 5×"),
    )


def _links(care: UpkeepContext, count: int) -> None:
    """A table of many small files: hard links to a few distinct ones, in manifests of a thousand entries."""
    table = ensure_table(care.store, "bench.t", SCHEMA)
    made: list[DataFile] = []
    for number in range(DISTINCT):
        writer = TableWriter(WriteTarget.of(table), f"distinct-{number}")
        rows = pa.table([pa.array([number], pa.int64()), pa.array([b"x" * 200], pa.binary())], schema=SCHEMA)
        writer.add(convert_rows(rows, writer.schema).rows)
        made += writer.finish()
    folder = Path(table.location().removeprefix("file://")) / "data"
    table.refresh()
    for start in range(0, count, PER_MANIFEST):
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
            for number in range(start, start + PER_MANIFEST):
                file = made[number % DISTINCT]
                path = folder / f"{number:06d}.parquet"
                os.link(file.file_path.removeprefix("file://"), path)
                update.append_data_file(_renamed(file, f"file://{path}"))
        table.refresh()


def _renamed(file: DataFile, path: str) -> DataFile:
    copy = DataFile.from_args(
        content=file.content, file_path=path, file_format=file.file_format, partition=file.partition,
        record_count=file.record_count, file_size_in_bytes=file.file_size_in_bytes, column_sizes=file.column_sizes,
        value_counts=file.value_counts, null_value_counts=file.null_value_counts,
        nan_value_counts=file.nan_value_counts,
        lower_bounds=file.lower_bounds, upper_bounds=file.upper_bounds, split_offsets=file.split_offsets,
    )  # fmt: skip
    copy.spec_id = 0
    return copy


# -- helpers -----------------------------------------------------------------------------------------------------------


def _open(settings: Settings, name: str) -> Repository:
    root = f"{settings.model.backup.bucket or settings.model.home / 'backups'}-{name}"
    return Repository.open(root, s3=settings.model.s3, network=settings.model.network, create=True)


def _restore(care: UpkeepContext, repository: Repository, backup: str, name: str) -> None:
    record = repository.read_record(backup)
    plan = plan_restore(care, repository, record, record.tables[0], RestoreTarget(name))
    with open_engine("local", care.settings) as engine:
        run_restore(care, repository, plan, engine)


def _seconds(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


@contextmanager
def _peak() -> Iterator[dict[str, float]]:
    """Seconds, and the highest resident memory of this process. (`getrusage` would count that of its parent.)"""
    found: dict[str, float] = {}
    began = time.perf_counter()
    yield found
    found["seconds"] = time.perf_counter() - began
    found["mib"] = memory(os.getpid())[1]


def main(step: str, home: str) -> None:
    """Runs one step in a separate process; prints what it took."""
    settings = load_settings(flags={"home": home}, environ={})
    with open_context(settings) as care, _peak() as found:
        repository = _open(settings, "many")
        if step == "create":
            create_backup(care, repository, ["bench.t"], engine="local", name="first")
        else:
            _restore(care, repository, "first", "bench.restored")
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
