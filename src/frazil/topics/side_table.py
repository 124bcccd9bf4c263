"""Side tables of a sink: append-only tables that a batch commits before the table that carries the sink's position.

A side table has a position of its own. After a crash between two commits it is ahead of the sink's table; the next try
of the batch then skips the rows that the side table has already.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from frazil.log.columns import PARTITION
from frazil.tables import Position, TableStore, adopt, commit_append

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from frazil.tables import Commit


def append_to_side_table(
    store: TableStore,
    table: Table,
    files: Sequence[DataFile],
    *,
    expected: Position | None,
    reached: Position,
    keep_snapshots: int,
) -> Commit:
    """Appends the files of a batch to a side table and advances its position, which never moves back.

    Args:
        store: the catalog with the table.
        table: the side table.
        files: what the batch adds to it.
        expected: the position of the side table that the batch was planned with.
        reached: the position that the sink's own table gets by the same batch.
        keep_snapshots: how many snapshots stay in the side table.

    Raises:
        PositionMovedError: another pipeline has advanced the side table; the batch must be planned again.
    """
    if expected is not None:
        if expected.log_id != reached.log_id:  # the sink's table has adopted another log
            expected = replace(expected, log_id=reached.log_id, epoch=reached.epoch, batch_id=str(uuid.uuid4()))
            table = adopt(store, table, expected)
        highest = max(reached.offsets[PARTITION], expected.offsets.get(PARTITION, 0))
        reached = replace(reached, offsets={PARTITION: highest})
    return commit_append(store, table, files, expected=expected, reached=reached, keep_snapshots=keep_snapshots)
