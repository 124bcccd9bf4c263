"""Sets a table's position outright, where a person has decided what it shall be. No rows change.

It is a commit of its own, so that main moves: a batch that was planned on the old position can no longer land.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import RemovePropertiesUpdate, SetPropertiesUpdate

from frazil.observe.faultpoints import reach
from frazil.tables.commit_draft import Draft, build_draft, draft_append, read_live_manifests
from frazil.tables.manifest_writer import ManifestWriter
from frazil.tables.position import Position, look, position_key
from frazil.tables.store import TableStore

if TYPE_CHECKING:
    from pyiceberg.table import Table


def adopt(store: TableStore, table: Table, position: Position, *, properties: Mapping[str, str] | None = None) -> Table:
    """Gives the table this position: for a log with a new id, to write rows again, or to leave some out.

    Args:
        store: where.
        table: as it was loaded when the decision was made.
        position: the position.
        properties: further properties that it shall have.

    Raises:
        ConflictError: the table has changed since it was loaded. Load it and decide again.
    """
    draft = draft_append(store, table, (), position)
    if properties:
        draft = replace(draft, updates=(*draft.updates, SetPropertiesUpdate(updates=dict(properties))))
    return _commit(store, draft)


def accept_rollback(store: TableStore, table: Table, sink: str, topic: str, *, keep: bool) -> Table:
    """Goes on after a rollback. Where there was none, nothing happens.

    Args:
        store: where.
        table: as it was loaded when the decision was made.
        sink: whose position.
        topic: of which topic.
        keep: leave the rows out that the rollback removed; otherwise they are to be written again from the log. If
            the error's `table_position` is None and the table has rows, no snapshot tells how far they reach: find that
            out and call `adopt` instead, or rows are written twice.

    Raises:
        ConflictError: the table has changed since it was loaded. Load it and decide again.
    """
    held, recorded, rolled_back = look(table.metadata, sink, topic)
    if not rolled_back:
        return table
    position = recorded if keep else held
    if position is not None:
        return adopt(store, table, position)
    return _commit(store, _without_position(store, table, position_key(sink, topic)))


def _without_position(store: TableStore, table: Table, key: str) -> Draft:
    forget = RemovePropertiesUpdate(removals=[key])
    return build_draft(
        table, ManifestWriter(store, table), read_live_manifests(store, table), Operation.APPEND, more=[forget]
    )


def _commit(store: TableStore, draft: Draft) -> Table:
    reach("tables.position.before")
    # Called once: a reply that was lost leaves either state, and both are whole.
    store.call_once(lambda: store.catalog.commit_table(draft.base, draft.requirements, draft.updates))
    reach("tables.position.after")
    return store.load(draft.base.name())
