"""Chapter 3: a table that 300 tiny commits have worn out, before and after upkeep."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.catalogs import local_path
from frazil.demo.session import SharedSession
from frazil.demo.stage import Stage
from frazil.errors import IntegrityError
from frazil.settings import Settings
from frazil.tables import Position, TableStore, commit_append, ensure_table
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.plans.health import Health, examine
from frazil.upkeep.runs.open_context import open_context
from frazil.upkeep.runs.run import run_upkeep

if TYPE_CHECKING:
    from pyiceberg.table import Table

TABLE = "demo.shots"
_COMMITS = 300
_ROWS = 20
_SCHEMA = pa.schema([("shot", pa.int64()), ("camera", pa.string()), ("iso", pa.int64())])


def chapter(stage: Stage, settings: Settings, session: SharedSession) -> None:
    stage.chapter("Chapter 3: 300 tiny commits, and a table that stays fast and small")
    # Nobody reads here and nobody looks back: files need not wait an hour for readers, nor snapshots for travellers.
    policy = settings.model.upkeep.policy.model_copy(update={"file_grace_s": 0.0, "max_snapshots": 1})
    upkeep = settings.model.upkeep.model_copy(update={"policy": policy})
    with open_context(Settings(settings.model.model_copy(update={"upkeep": upkeep}))) as care:
        with stage.step(f"{_COMMITS} commits of {_ROWS} rows each"):
            table = _worn_out(care)
        before = _look(stage, care, table)
        spark = session.get()
        with stage.step(f"frazil upkeep run {TABLE}"):
            report = run_upkeep(replace(care, spark=lambda: spark), TABLE)
        for error in report.errors:
            raise error
        stage.table(
            ["step", "result", "files", "snapshots removed", "files deleted", "bytes freed"],
            [
                [o.kind, o.result, f"{o.files_before} → {o.files_after}", o.snapshots_removed, o.files_removed,
                 f"{o.bytes_reclaimed:,}"]
                for o in report.outcomes
            ],
        )  # fmt: skip
        _compare(stage, before, _look(stage, care, table))


def _worn_out(care: UpkeepContext) -> Table:
    """A table that a sink has written batch by batch, with nobody to take care of it."""
    # Old versions of the metadata need not wait ten minutes for readers.
    with TableStore(care.store.catalog, care.store.settings, care.store.network, delete_delay_s=0.0) as store:
        return _written(store)


def _written(store: TableStore) -> Table:
    table = ensure_table(store, TABLE, _SCHEMA)
    position: Position | None = None
    for commit in range(_COMMITS):
        shots = range(commit * _ROWS, (commit + 1) * _ROWS)
        columns = [list(shots), [f"camera-{shot % 7}" for shot in shots], [100 << shot % 7 for shot in shots]]
        writer = TableWriter(WriteTarget.of(table), f"{commit:03d}")
        writer.add(pa.table(columns, schema=writer.schema))
        reached = Position("demo", "shots", {0: shots.stop}, "demo", 1, str(commit))
        done = commit_append(
            store, table, writer.finish(), expected=position, reached=reached, keep_snapshots=2 * _COMMITS
        )
        table, position = done.table, done.position
    return table


class _Seen:
    """What was seen at one look."""

    def __init__(self, health: Health, disk: int, read_s: float) -> None:
        self.health, self.disk, self.read_s = health, disk, read_s

    def row(self) -> list[object]:
        health = self.health
        return [
            health.rows, health.files["count"], health.manifests["count"], health.snapshots["count"],
            f"{health.metadata['json_bytes']:,}", f"{self.disk:,}", f"{self.read_s * 1000:.0f} ms",
        ]  # fmt: skip


def _look(stage: Stage, care: UpkeepContext, table: Table) -> _Seen:
    with stage.step(f"frazil table health {TABLE}, and read the whole table") as record:
        health = examine(care, TABLE)
        began = time.perf_counter()
        rows = care.load(TABLE).scan().to_arrow()
        seconds = time.perf_counter() - began
        if sorted(rows["shot"].to_pylist()) != list(range(_COMMITS * _ROWS)):
            raise IntegrityError(f"{TABLE} does not contain the rows that were written", hint="please report it")
        record["rows"] = rows.num_rows
    folder = local_path(table.location())
    assert folder is not None, "the demo's warehouse is a folder"
    disk = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return _Seen(health, disk, seconds)


def _compare(stage: Stage, before: _Seen, after: _Seen) -> None:
    columns: Sequence[str] = ["", "rows", "files", "manifests", "snapshots", "metadata bytes", "bytes on disk", "read"]
    stage.table(columns, [["before", *before.row()], ["after", *after.row()]])
