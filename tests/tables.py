"""A small sink for tests of tables: offsets become rows, and the table's own position says where to go on.

As a program it is one of several writers that race: `python -m tests.tables HOME TABLE UNTIL SIZE`.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.catalogs import open_catalog
from frazil.settings import CatalogSettings, load_settings
from frazil.tables import Commit, Position, PositionMovedError, TableStore, commit_append, ensure_table, find_position

SINK, TOPIC, LOG = "archive", "clicks", "log-1"
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("publish_time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("payload", pa.string()),
    ]
)
_DAY = datetime(2026, 1, 1, tzinfo=UTC)


def embedded(home: Path) -> CatalogSettings:
    return load_settings(flags={"home": str(home)}, environ={}).catalog()


def open_store(settings: CatalogSettings, **options: float) -> TableStore:
    return TableStore(open_catalog(settings), settings, **options)


def make_table(store: TableStore, name: str, **options: object) -> Table:
    return ensure_table(store, name, SCHEMA, partition=["day(publish_time)"], sort=["offset"], **options)


def rows(start: int, end: int) -> pa.Table:
    """One row for each offset, two hundred to the day."""
    offsets = list(range(start, end))
    times = [_DAY + timedelta(days=o // 200, seconds=o % 200) for o in offsets]
    return pa.table([offsets, times, [f"message {o}" for o in offsets]], schema=SCHEMA)


def write(table: Table, start: int, end: int) -> list[DataFile]:
    return list(_dataframe_to_data_files(table.metadata, rows(start, end), table.io))


def at(offset: int, batch_id: str | None = None, **more: object) -> Position:
    fields = {"sink": SINK, "topic": TOPIC, "log_id": LOG, "epoch": 1}
    return Position(offsets={0: offset}, batch_id=batch_id or uuid.uuid4().hex, **{**fields, **more})


def reached(table: Table) -> Position | None:
    return find_position(table, SINK, TOPIC)


def end_of(position: Position | None) -> int:
    return position.offsets[0] if position else 0


def append(store: TableStore, table: Table, size: int = 3, **options: int) -> Commit:
    """Plans on the table as given, writes the files, and commits."""
    expected = reached(table)
    start = end_of(expected)
    files = write(table, start, start + size)
    return commit_append(store, table, files, expected=expected, reached=at(start + size), **options)


def append_until(store: TableStore, table: Table, until: int, size: int = 3) -> tuple[Table, int]:
    """Appends until the table has reached `until`, whoever did it; and how many commits were ours."""
    mine = 0
    while end_of(reached(table)) < until:
        try:
            table = append(store, table, min(size, until - end_of(reached(table)))).table
            mine += 1
        except PositionMovedError as moved:
            table = moved.table
    return table, mine


def offsets_in(table: Table) -> list[int]:
    return sorted(table.scan(selected_fields=("offset",)).to_arrow()["offset"].to_pylist())


def data_paths(table: Table) -> set[str]:
    """Every data file in the table's folder, whether or not it belongs to the table."""
    folder = Path(table.location().removeprefix("file://")) / "data"
    return {str(p) for p in folder.rglob("*.parquet")}


class Wrapped:
    """A catalog whose `commit_table` a test has put its hands on; all else is the real one's."""

    def __init__(self, catalog: Catalog, commits: Sequence[Callable[..., object] | None]) -> None:
        self._catalog = catalog
        self._commits = list(commits)
        self.calls = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._catalog, name)

    def commit_table(self, table: Table, requirements: tuple, updates: tuple) -> object:
        self.calls += 1
        instead = self._commits.pop(0) if self._commits else None
        real = self._catalog.commit_table
        return instead(real, table, requirements, updates) if instead else real(table, requirements, updates)


def applied_but_lost(real, table, requirements, updates):
    real(table, requirements, updates)
    raise ConnectionError("the reply was lost")


def lost_on_the_way(real, table, requirements, updates):
    raise ConnectionError("the request was lost")


def main(home: str, name: str, until: str, size: str) -> None:
    store = open_store(embedded(Path(home)))
    _, mine = append_until(store, make_table(store, name), int(until), int(size))
    sys.stdout.write(f"{mine}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
