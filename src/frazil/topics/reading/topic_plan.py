"""The plan of a topic's table: its files by offset, and the offset up to which it is complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.errors import UnsupportedError
from frazil.log.columns import MESSAGE, PARTITION
from frazil.settings import NetworkSettings
from frazil.tables import Position, RolledBackError, find_position
from frazil.tables.reading.ordered_plan import OrderedPlan, order_files
from frazil.tables.reading.planning import plan_files
from frazil.topics.layout import ARCHIVE

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True)
class TopicPlan(OrderedPlan):
    """One snapshot of a topic's table."""

    reached: Position | None
    """The position that the table carries."""
    floor: int
    """The lowest offset that may be in the table; its position where it holds none."""

    @property
    def position(self) -> int:
        """All messages below are in the table or dead letters of it, unless retention has removed them."""
        return self.reached.offsets.get(PARTITION, 0) if self.reached is not None else 0

    def extra(self) -> pa.Schema:
        """The table's columns that not every message has."""
        return pa.schema([f for f in self.columns() if f.name not in MESSAGE.names])

    def following(self, offset: int) -> int:
        """Returns the first offset from this one on that may be in the table; its position if there is none."""
        later = [max(f.lower, offset) for f in self.files if f.upper >= offset]
        return min(later, default=max(self.position, offset))


def plan_topic(table: Table, topic: str, network: NetworkSettings | None = None) -> TopicPlan:
    """Plans the files of the table's current snapshot.

    Args:
        table: the table.
        topic: its topic.
        network: retries of its storage.

    Raises:
        UnsupportedError: it has equality deletes, which PyIceberg cannot read.
        FileNotFoundError: the snapshot has expired since the table was loaded.
    """
    try:
        position = find_position(table, ARCHIVE, topic)
    except RolledBackError as error:
        # What the rows reach still counts; what follows may be in the log. The pipeline is the one that must ask.
        position = error.table_position
    try:
        tasks = plan_files(table.scan(), network or NetworkSettings())
    except ValueError as error:
        raise UnsupportedError(
            f"the table {'.'.join(table.name())} cannot be read",
            cause=str(error),
            hint=f"compact it with Spark: CALL system.rewrite_data_files(table => '{'.'.join(table.name())}')",
        ) from error
    files = order_files(table, tasks)
    end = position.offsets.get(PARTITION, 0) if position is not None else 0
    floor = min([end, *(f.lower for f in files)])
    return TopicPlan(table.metadata, table.io, table.metadata.current_snapshot_id, tuple(files), position, floor)
