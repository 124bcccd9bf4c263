"""Changes a table's properties, and takes columns away, in commits that add no snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AssertLastAssignedFieldId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)

from frazil.errors import NotAllowedError
from frazil.observe.faultpoints import reach
from frazil.tables.commit_retry import commit_with_retry
from frazil.tables.errors import PositionMovedError
from frazil.tables.store import TableStore

if TYPE_CHECKING:
    from pyiceberg.table import Table

Change = tuple[Sequence[TableUpdate], Sequence[TableRequirement]]

#: What a table of the room `replica` is: `replica`, or `primary` after a failover.
REPLICA_ROLE = "frazil.replica.role"


def require_no_replica(table: Table) -> None:
    """Refuses to write a table that follows a primary: the next sync could not tell whose history is right.

    Raises:
        NotAllowedError: it is a replica.
    """
    if table.metadata.properties.get(REPLICA_ROLE) == "replica":
        name = ".".join(table.name())
        raise NotAllowedError(
            f"{name} is a replica and is read-only",
            cause="it follows the table of its primary until a failover",
            hint=f"frazil replica failover {name}",
        )


def set_properties(
    store: TableStore, table: Table, properties: Mapping[str, str | None], *, on: int | None = None
) -> Table:
    """Sets properties of a table; None removes one.

    Args:
        store: where.
        table: may be out of date.
        properties: the caller's own: the last writer wins.
        on: id of the snapshot that main has to be at; None: whatever it is at.

    Raises:
        PositionMovedError: main is not there any more.
    """

    def missing(now: Table) -> Change | None:
        have = now.metadata.properties
        told = {name: value for name, value in properties.items() if value is not None and have.get(name) != value}
        gone = [name for name, value in properties.items() if value is None and name in have]
        updates: list[TableUpdate] = [SetPropertiesUpdate(updates=told)] if told else []
        updates += [RemovePropertiesUpdate(removals=gone)] if gone else []
        return (updates, ()) if updates else None

    return _commit_missing(store, table, missing, on)


def drop_columns(store: TableStore, table: Table, names: Sequence[str], *, on: int | None = None) -> Table:
    """Drops columns of a table; unknown names are ignored. See `set_properties`."""

    def missing(now: Table) -> Change | None:
        from pyiceberg.table import Transaction
        from pyiceberg.table.update.schema import UpdateSchema

        there = [name for name in names if name in now.schema().column_names]
        if not there:
            return None
        update = UpdateSchema(Transaction(now), allow_incompatible_changes=True)
        for name in there:
            update.delete_column(name)
        updates, requirements = update._commit()
        same = AssertLastAssignedFieldId(last_assigned_field_id=now.metadata.last_column_id)
        return updates, (same, *requirements)

    return _commit_missing(store, table, missing, on)


def _commit_missing(
    store: TableStore, table: Table, missing: Callable[[Table], Change | None], on: int | None
) -> Table:
    def prepare(now: Table) -> Change | None:
        change = missing(now)
        if change is not None and on is not None and now.metadata.current_snapshot_id != on:
            raise PositionMovedError(f"another writer has changed {'.'.join(now.name())}", hint="plan again")
        return change

    def commit(now: Table, change: Change) -> None:
        updates, requirements = change
        if on is not None:
            requirements = (AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=on), *requirements)
        uuid = AssertTableUUID(uuid=now.metadata.table_uuid)
        reach("tables.properties.before")
        store.call_once(lambda: store.catalog.commit_table(now, (uuid, *requirements), tuple(updates)))
        reach("tables.properties.after")

    return commit_with_retry(store, table, prepare, commit)
