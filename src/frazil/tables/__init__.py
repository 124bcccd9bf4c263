"""The Iceberg kit of all rooms: tables that carry their own position and take rows exactly once; rows; metadata.

Names are loaded on first use, because PyIceberg takes half a second to import and most commands need none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frazil.tables.adoption import accept_rollback, adopt
    from frazil.tables.commit import Commit, commit_append
    from frazil.tables.create import ensure_table
    from frazil.tables.errors import CommitUnknownError, PositionMovedError, RolledBackError, SchemaMismatchError
    from frazil.tables.file_removal import RemovedFiles, list_data_files, remove_files
    from frazil.tables.layout import parse_partition_spec, parse_sort_order
    from frazil.tables.position import Position, find_highest_offsets, find_position
    from frazil.tables.properties import drop_columns, set_properties
    from frazil.tables.schema_evolution import evolve_schema
    from frazil.tables.store import LazyStore, TableStore, find_table

_MODULES = {
    "adoption": ("accept_rollback", "adopt"),
    "commit": ("Commit", "commit_append"),
    "create": ("ensure_table",),
    "schema_evolution": ("evolve_schema",),
    "errors": ("CommitUnknownError", "PositionMovedError", "RolledBackError", "SchemaMismatchError"),
    "layout": ("parse_partition_spec", "parse_sort_order"),
    "position": ("Position", "find_highest_offsets", "find_position"),
    "properties": ("drop_columns", "set_properties"),
    "file_removal": ("RemovedFiles", "list_data_files", "remove_files"),
    "store": ("LazyStore", "TableStore", "find_table"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Commit",
    "CommitUnknownError",
    "LazyStore",
    "Position",
    "PositionMovedError",
    "RemovedFiles",
    "RolledBackError",
    "SchemaMismatchError",
    "TableStore",
    "accept_rollback",
    "adopt",
    "commit_append",
    "drop_columns",
    "ensure_table",
    "evolve_schema",
    "find_highest_offsets",
    "find_position",
    "find_table",
    "list_data_files",
    "parse_partition_spec",
    "parse_sort_order",
    "remove_files",
    "set_properties",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
