"""The Iceberg kit: tables that are there when needed, carry their own position, and take rows exactly once."""

from frazil.tables.adopt import accept_rollback, adopt
from frazil.tables.commit import Commit, commit_append
from frazil.tables.create import ensure_table
from frazil.tables.evolve import evolve
from frazil.tables.failures import CommitUnknownError, PositionMovedError, RolledBackError, SchemaMismatchError
from frazil.tables.layout import partition_spec, sort_order
from frazil.tables.position import Position, highest_offsets, position_of
from frazil.tables.properties import drop_columns, set_properties
from frazil.tables.remove import Removal, data_files, remove_files
from frazil.tables.store import TableStore

__all__ = [
    "Commit",
    "CommitUnknownError",
    "Position",
    "PositionMovedError",
    "Removal",
    "RolledBackError",
    "SchemaMismatchError",
    "TableStore",
    "accept_rollback",
    "adopt",
    "commit_append",
    "data_files",
    "drop_columns",
    "ensure_table",
    "evolve",
    "highest_offsets",
    "partition_spec",
    "position_of",
    "remove_files",
    "set_properties",
    "sort_order",
]
