"""Commits that add rows and take others away: on the snapshot that was read, or not at all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import Operation

from frazil.tables import PositionMovedError, commit_append
from frazil.tables.writing.data_files import WriteTarget
from frazil.tables.writing.position_deletes import write_position_deletes
from tests.tables import append, at, embedded, end_of, make_table, offsets_in, open_store, reached, write


@pytest.fixture
def store(tmp_path):
    with open_store(embedded(tmp_path / "home")) as opened:
        yield opened


@pytest.fixture
def table(store):
    return append(store, make_table(store, "topics.clicks"), 10).table


def places_of(table) -> dict[str, tuple[int, object]]:
    return {t.file.file_path: (t.file.spec_id, t.file.partition) for t in table.scan().plan_files()}


def where(table, offset: int) -> tuple[str, int]:
    for task in table.scan().plan_files():
        found = pq.read_table(task.file.file_path.removeprefix("file://"))["offset"].to_pylist()
        if offset in found:
            return task.file.file_path, found.index(offset)
    raise AssertionError(f"no row {offset}")


def deletes(table, *offsets: int):
    files, positions = zip(*(where(table, offset) for offset in offsets), strict=True)
    return write_position_deletes(
        WriteTarget.of(table), "d", pa.array(files), pa.array(positions, pa.int64()), places_of(table)
    )


def delta(store, table, gone: list[int], count: int = 2):
    """Takes some rows away and adds some."""
    start = end_of(reached(table))
    files = [*write(table, start, start + count), *deletes(table, *gone)]
    on = table.metadata.current_snapshot_id
    return files, lambda: commit_append(
        store, table, files, expected=reached(table), reached=at(start + count), on=on, keep_snapshots=3
    )


def test_rows_come_and_go_in_one_commit(store, table):
    _, commit = delta(store, table, [3, 7])
    done = commit()
    assert offsets_in(done.table) == [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]
    assert end_of(reached(done.table)) == 12
    snapshot = done.table.current_snapshot()
    assert snapshot.summary.operation is Operation.OVERWRITE
    assert snapshot.summary["added-position-deletes"] == "2"
    contents = [m.content for m in snapshot.manifests(done.table.io)]
    assert contents == sorted(contents) and ManifestContent.DELETES in contents


def test_on_another_snapshot_it_does_not_land_and_leaves_nothing(store, table):
    files, commit = delta(store, table, [3])
    append(store, store.load(table.name()), 1)
    with pytest.raises(PositionMovedError):
        commit()
    assert offsets_in(store.load(table.name())) == list(range(11))
    assert not [f for f in files if Path(f.file_path.removeprefix("file://")).exists()]


def test_a_foreign_commit_that_moves_no_position_is_no_base_either(store, table):
    files, commit = delta(store, table, [3])
    store.load(table.name()).append(pa.table(write_rows(store, table), schema=table.schema().as_arrow()))
    with pytest.raises(PositionMovedError, match="since its rows were read"):
        commit()
    assert 3 in offsets_in(store.load(table.name()))
    assert not [f for f in files if Path(f.file_path.removeprefix("file://")).exists()]


def write_rows(store, table):
    del store
    row = table.scan(row_filter="offset = 0").to_arrow()
    return {name: row[name] for name in row.column_names}


@pytest.mark.deep
def test_many_keep_few_manifests_and_snapshots_and_every_delete(store, table):
    gone = []
    for number in range(40):
        gone.append(number)
        table = delta(store, table, [number])[1]().table
    assert offsets_in(table) == [o for o in range(90) if o not in gone]
    assert len(table.metadata.snapshots) <= 5
    manifests = table.current_snapshot().manifests(table.io)
    assert len([m for m in manifests if m.content == ManifestContent.DELETES]) < 20
    assert len(manifests) < 30
