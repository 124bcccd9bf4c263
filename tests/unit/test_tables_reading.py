"""Reads of tables, one by one: keys and their places, an overlay of rows, and files that go missing meanwhile."""

from __future__ import annotations

import errno
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from frazil.errors import FrazilError, IntegrityError, NotFoundError, UnavailableError
from frazil.settings import NetworkSettings
from frazil.tables import Position, TableStore, commit_append, ensure_table, find_position
from frazil.tables.reading import retrying
from frazil.tables.reading.key_lookup import find_keys
from frazil.tables.reading.overlay import OverlayTable, empty_table
from frazil.tables.reading.retrying import MissingFileCheck, read_current, read_with_retry
from frazil.tables.writing import data_files
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.position_deletes import write_position_deletes
from frazil.tables.writing.type_conversion import convert_all_rows
from tests.tables import embedded, open_store

SCHEMA = pa.schema([("bucket", pa.string()), ("key", pa.string()), ("size", pa.int64())])
NETWORK = NetworkSettings(retry_attempts=3, retry_timeout=30.0)
Key = tuple[str, str]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TableStore]:
    with open_store(embedded(tmp_path / "home")) as opened:
        yield opened


def rows_of(found: Sequence[tuple[str, str, int | None]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in found], schema=SCHEMA)


def commit(store: TableStore, table: Table, files: Sequence[Any]) -> Table:
    expected = find_position(table, "test", "topic")
    offset = 1 if expected is None else expected.offsets[0] + 1
    reached = Position("test", "topic", {0: offset}, "log", 1, uuid.uuid4().hex)
    return commit_append(store, table, files, expected=expected, reached=reached).table


def append(store: TableStore, table: Table, rows: pa.Table) -> Table:
    writer = TableWriter(WriteTarget.of(table), "test")
    writer.add(convert_all_rows(rows, writer.schema))
    return commit(store, table, writer.finish())


def filled(store: TableStore, *batches: Sequence[tuple[str, str, int | None]]) -> Table:
    """A table with one file for each batch."""
    table = ensure_table(store, "some.things", SCHEMA, sort=["bucket", "key"])
    for batch in batches:
        table = append(store, table, rows_of(batch))
    return table


def delete(store: TableStore, table: Table, found: pa.Table) -> Table:
    files, positions = (found.column(name).combine_chunks() for name in ("_file", "_pos"))
    return commit(store, table, write_position_deletes(WriteTarget.of(table), "gone", files, positions))


def keys_of(*keys: Key) -> pa.Table:
    return pa.table({"bucket": [b for b, _ in keys], "key": [k for _, k in keys]}, pa.schema(list(SCHEMA)[:2]))


def found_in(store: TableStore, table: Table, *keys: Key, max_rows: int = 1_000) -> list[Key]:
    found = find_keys(store, table, keys_of(*keys), max_rows)
    assert found is not None
    return sorted(zip(*(found.column(name).to_pylist() for name in ("bucket", "key")), strict=True))


# -- keys


def test_keys_are_found_as_wholes_with_the_places_of_their_rows(store: TableStore):
    table = filled(store, [("a", "1", 1), ("a", "2", 2), ("b", "1", 3)], [("b", "2", 4), ("c", "ü", 5)])
    assert found_in(store, table, ("a", "2"), ("b", "1"), ("c", "ü"), ("nobody", "x")) == [
        ("a", "2"), ("b", "1"), ("c", "ü"),
    ]  # fmt: skip
    assert found_in(store, table, ("a", "ü"), ("c", "1")) == [], "each part occurs, and no row has both"
    assert found_in(store, table) == []
    found = find_keys(store, table, keys_of(("a", "2"), ("b", "2")), 1_000)
    assert found is not None and sorted(found.column("_pos").to_pylist()) == [0, 1]
    # What stands at these places is what was looked for.
    left = delete(store, table, found).scan().to_arrow()
    assert sorted(left.column("size").to_pylist()) == [1, 3, 5]


def test_rows_that_are_deleted_are_not_found_and_those_written_again_are(store: TableStore):
    table = filled(store, [("a", "1", 1), ("a", "2", 2), ("a", "3", 3)])
    found = find_keys(store, table, keys_of(("a", "1"), ("a", "2")), 1_000)
    assert found is not None
    table = delete(store, table, found)
    assert found_in(store, table, ("a", "1"), ("a", "2"), ("a", "3")) == [("a", "3")]
    table = append(store, table, rows_of([("a", "1", 9)]))
    assert found_in(store, table, ("a", "1"), ("a", "2")) == [("a", "1")]


def test_only_row_groups_that_may_have_a_key_are_compared(store: TableStore, monkeypatch):
    rows = rows_of([("a", f"{n:03}", n) for n in range(30)])
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", rows.nbytes // 10)
    table = append(store, filled(store), rows)
    assert found_in(store, table, ("a", "004"), max_rows=3) == [("a", "004")]
    assert find_keys(store, table, keys_of(("a", "004"), ("a", "025")), 5) is None, "two groups of three rows"
    assert found_in(store, table, ("a", "004"), ("a", "025"), max_rows=6) == [("a", "004"), ("a", "025")]


@pytest.mark.parametrize("seed", range(3))
def test_any_keys_are_found_as_a_scan_finds_them(store: TableStore, monkeypatch, seed: int):
    """More keys than Iceberg compares one by one, long ones, and files of several row groups."""
    monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 500)
    chance = random.Random(seed)
    alphabet = ["a", "b", "é", "\U0001f600", "z" * 40]
    everything = {(chance.choice(alphabet), f"{chance.choice(alphabet)}{n}") for n in range(400)}
    shuffled = sorted(everything)
    chance.shuffle(shuffled)
    cuts = [sorted((b, k, n) for n, (b, k) in enumerate(shuffled[start::4])) for start in range(4)]
    table = filled(store, *cuts)
    wanted = [*chance.sample(shuffled, 250), ("a", "none"), ("none", "a")]
    assert found_in(store, table, *wanted) == sorted(set(wanted) & everything)


# -- overlays


def test_an_overlay_has_other_rows_and_the_table_stays_as_it_is(store: TableStore):
    table = filled(store, [("a", "1", 1), ("a", "2", 2), ("a", "3", 3)], [("b", "1", 4)])
    gone = find_keys(store, table, keys_of(("a", "2"), ("b", "1")), 1_000)
    assert gone is not None
    files, positions = (gone.column(name).combine_chunks() for name in ("_file", "_pos"))
    overlay = OverlayTable(table, rows_of([("a", "2", 20), ("c", "1", None)]), files, positions)
    assert seen(overlay) == [("a", "1", 1), ("a", "2", 20), ("a", "3", 3), ("c", "1", None)]
    assert seen(overlay, row_filter="size >= 3") == [("a", "2", 20), ("a", "3", 3)]
    assert overlay.scan(selected_fields=("key",)).to_arrow().column_names == ["key"]
    assert overlay.scan(limit=2).to_arrow().num_rows == 2
    assert seen(table) == [("a", "1", 1), ("a", "2", 2), ("a", "3", 3), ("b", "1", 4)]
    assert store.load("some.things").metadata_location == table.metadata_location


def test_what_was_deleted_before_stays_deleted_below_an_overlay(store: TableStore):
    table = filled(store, [("a", "1", 1), ("a", "2", 2), ("a", "3", 3)])
    first, second = (find_keys(store, table, keys_of(("a", n)), 1_000) for n in "12")
    assert first is not None and second is not None
    table = delete(store, table, first)
    places = [second.column(name).combine_chunks() for name in ("_file", "_pos")]
    assert seen(OverlayTable(table, rows_of([]), *places)) == [("a", "3", 3)]


def test_an_overlay_of_a_table_that_does_not_exist_has_its_rows_alone(store: TableStore):
    nothing = [pa.array([], pa.string()), pa.array([], pa.int64())]
    made = empty_table(store, ("some", "things"), SCHEMA)
    assert seen(OverlayTable(made, rows_of([("a", "1", 1)]), *nothing)) == [("a", "1", 1)]
    assert seen(OverlayTable(made, rows_of([]), *nothing)) == []


def test_rows_that_do_not_fit_the_table_make_no_overlay(store: TableStore):
    wrong = pa.table({"bucket": ["a"], "key": ["b"], "size": ["many"]})
    with pytest.raises(FrazilError):
        OverlayTable(filled(store), wrong, pa.array([], pa.string()), pa.array([], pa.int64()))


def seen(table: Table, **options: Any) -> list[tuple[Any, ...]]:
    rows = table.scan(**options).to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=lambda row: row[:2])


# -- files that cannot be read

MISSING = FileNotFoundError(errno.ENOENT, "no such file")
BUSY = OSError("AWS Error SLOW_DOWN: please reduce your request rate")


class Failing:
    """Fails in turn with these errors, and then answers."""

    def __init__(self, *errors: OSError) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self, *_: object) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "rows"


@pytest.fixture
def impatient(monkeypatch):
    retry = retrying.retry
    monkeypatch.setattr(retrying, "retry", lambda *args, **more: retry(*args, **more, sleep=lambda _: None))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("errors", "calls", "raised"),
    [
        ([], 1, None),
        ([BUSY, BUSY], 3, None),
        ([BUSY] * 3, 3, BUSY),
        ([MISSING], 1, MISSING),
        ([OSError("AWS Error NO_SUCH_KEY during HeadObject")], 1, OSError),
        ([PermissionError("no")], 1, PermissionError),
        ([OSError("AWS Error ACCESS_DENIED")], 1, OSError),
        ([BUSY, MISSING], 2, MISSING),
    ],
)
def test_a_read_is_repeated_unless_the_storage_has_answered(errors: list[OSError], calls: int, raised: Any):
    read = Failing(*errors)
    if raised is None:
        assert read_with_retry(read, NETWORK) == "rows"
    else:
        with pytest.raises(raised if isinstance(raised, type) else type(raised)) as told:
            read_with_retry(read, NETWORK)
        assert isinstance(raised, type) or told.value is raised, "the storage's own error"
    assert read.calls == calls


def test_a_missing_file_is_expected_once_for_each_snapshot():
    check = MissingFileCheck("some.things")
    check.check(MISSING, 1)
    check.check(MISSING, 2)
    with pytest.raises(IntegrityError, match=r"some\.things"):
        check.check(MISSING, 1)
    with pytest.raises(UnavailableError, match="cannot be read"):
        check.check(BUSY, 3)


class Snapshots:
    """A table that has another snapshot each time it is loaded, until the last."""

    def __init__(self, *ids: int) -> None:
        self.ids = list(ids)

    def __call__(self) -> Any:
        table = type("Loaded", (), {})()
        table.metadata = type("Metadata", (), {"current_snapshot_id": self.ids[0]})()
        self.ids = self.ids[1:] or self.ids
        return table


@pytest.mark.parametrize(
    ("ids", "read", "expected"),
    [
        ((1, 2), Failing(MISSING), "rows"),
        ((1, 2, 3), Failing(MISSING, MISSING), "rows"),
        ((1,), Failing(MISSING), "rows"),  # it was there a moment later
        ((1,), Failing(MISSING, MISSING), IntegrityError),
        ((1, 2), Failing(BUSY), UnavailableError),
    ],
)
def test_a_read_goes_on_with_the_newer_table_while_files_are_replaced(
    ids: tuple[int, ...], read: Callable[[Any], str], expected: Any
):
    def run() -> str:
        return read_current(Snapshots(*ids), read, lambda: NotFoundError("none"), "some.things")

    if isinstance(expected, str):
        assert run() == expected
    else:
        with pytest.raises(expected):
            run()


def test_a_table_that_is_dropped_meanwhile_is_told_as_the_caller_wants():
    tables: list[Any] = [Snapshots(1)(), None]
    with pytest.raises(NotFoundError, match="dropped"):
        read_current(lambda: tables.pop(0), Failing(MISSING), lambda: NotFoundError("it was dropped"), "some.things")
