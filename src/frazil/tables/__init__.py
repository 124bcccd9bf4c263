"""The Iceberg kit of all rooms: tables that carry their own position and take rows exactly once; rows; metadata.

Names are loaded on first use, because PyIceberg takes half a second to import and most commands need none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frazil.tables.adoption import accept_rollback, adopt
    from frazil.tables.commit import Commit, commit_append
    from frazil.tables.create import ensure_table
    from frazil.tables.failures import CommitUnknownError, PositionMovedError, RolledBackError, SchemaMismatchError
    from frazil.tables.layout import partition_spec, sort_order
    from frazil.tables.position import Position, highest_offsets, position_of
    from frazil.tables.properties import drop_columns, set_properties
    from frazil.tables.remove import Removal, data_files, remove_files
    from frazil.tables.schema_evolution import evolve
    from frazil.tables.store import LazyStore, TableStore, find_table

_MODULES = {
    "adoption": ("accept_rollback", "adopt"),
    "commit": ("Commit", "commit_append"),
    "create": ("ensure_table",),
    "schema_evolution": ("evolve",),
    "failures": ("CommitUnknownError", "PositionMovedError", "RolledBackError", "SchemaMismatchError"),
    "layout": ("partition_spec", "sort_order"),
    "position": ("Position", "highest_offsets", "position_of"),
    "properties": ("drop_columns", "set_properties"),
    "remove": ("Removal", "data_files", "remove_files"),
    "store": ("LazyStore", "TableStore", "find_table"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Commit",
    "CommitUnknownError",
    "LazyStore",
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
    "find_table",
    "highest_offsets",
    "partition_spec",
    "position_of",
    "remove_files",
    "set_properties",
    "sort_order",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
