"""What must stay in a table of the soak whatever upkeep does: a tag, and a branch with a commit of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from frazil.tables import TableStore
from tests.soak_merge import ACCOUNTS

TAG, BRANCH = "early_tag", "early_branch"
_TRIES = 20


@dataclass(frozen=True)
class Held:
    """The keys of the rows that the tag and the branch have."""

    column: str
    keys: dict[str, pa.Array]

    def check(self, table: Table) -> None:
        for ref, keys in self.keys.items():
            assert ref in table.refs(), f"{ref} of {'.'.join(table.name())} is gone"
            assert _keys(table, self.column, ref) == keys, f"{ref} of {'.'.join(table.name())} has other rows"


def hold(store: TableStore, name: str) -> Held:
    """Tags a table as it is, begins a branch there, and commits a row to the branch: one of its own, once more."""
    snapshot = store.load(name).current_snapshot()
    assert snapshot is not None
    at = snapshot.snapshot_id

    def tag(table: Table) -> None:
        table.manage_snapshots().create_tag(at, TAG).commit()

    def branch(table: Table) -> None:
        table.manage_snapshots().create_branch(at, BRANCH).commit()

    def append(table: Table) -> None:
        table.append(table.scan(snapshot_id=at, limit=1).to_arrow(), branch=BRANCH)

    for change in (tag, branch, append):
        _patiently(store, name, change)
    table, column = store.load(name), "id" if name == ACCOUNTS else "offset"
    keys = {ref: _keys(table, column, ref) for ref in (TAG, BRANCH)}
    assert len(keys[BRANCH]) == len(keys[TAG]) + 1
    return Held(column, keys)


def _patiently(store: TableStore, name: str, change: Callable[[Table], None]) -> None:
    for _ in range(_TRIES):
        try:
            return change(store.load(name))
        except CommitFailedException:
            continue  # a sink, a merge or upkeep was faster
        except ValueError as error:  # so PyIceberg says it where that was on another branch
            if "older than last sequence number" not in str(error):
                raise
    raise AssertionError(f"{change.__name__} of {name} never got through")


def _keys(table: Table, column: str, ref: str) -> pa.Array:
    rows = table.scan(selected_fields=(column,), snapshot_id=table.refs()[ref].snapshot_id).to_arrow()
    keys = rows[column].combine_chunks()
    return keys.take(pc.sort_indices(keys))


def since(table: Table, sequence: int) -> list[Snapshot]:
    """The snapshots of main after a sequence number, oldest first."""
    found: list[Snapshot] = []
    snapshot = table.current_snapshot()
    while snapshot is not None and (snapshot.sequence_number or 0) > sequence:
        found.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return found[::-1]


def make_fixed(store: TableStore) -> Table:
    """A table of a few small files that nobody changes."""
    store.catalog.create_namespace_if_not_exists("soak")
    rows = pa.table({"id": list(range(2000)), "value": ["a value"] * 2000})
    table = store.catalog.create_table("soak.fixed", schema=rows.schema)
    for _ in range(8):
        table.append(rows)
    return store.load("soak.fixed")
