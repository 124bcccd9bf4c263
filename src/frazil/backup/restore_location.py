"""Where a restored table will lie: a folder that is empty, or that an interrupted run of the same restore has begun.

A marker in the folder says which restore writes there. It is written first and removed after the table is published, so
that a second run continues where the first one stopped, and no other restore writes into the folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Literal

from frazil.catalogs.pointers import read_metadata
from frazil.errors import ConflictError, NotAllowedError, NotFoundError, UsageError
from frazil.storage import ObjectStore, parse
from frazil.tables.metadata.locations import (
    canonical_folder,
    canonical_folder_or_raw,
    overlaps,
)
from frazil.tables.relocation.target_folder import TargetFolder
from frazil.upkeep.expiry.shared_locations import list_all_tables

if TYPE_CHECKING:
    from frazil.tables import TableStore
    from frazil.upkeep.context import UpkeepContext

#: Object in the folder of a restore that is not finished.
MARKER = "frazil-restore.json"
_TRIES = 100
_SUFFIX = re.compile(r"_restored_\d{8}T\d{6}Z(_\d+)?$")

FolderState = Literal["empty", "begun", "used"]


def get_target_folder(care: UpkeepContext, location: str) -> TargetFolder:
    """Returns a folder on the storage of a catalog's tables."""
    return TargetFolder(location, care.catalog.s3 or care.settings.model.s3, care.settings.model.network)


def choose_location(care: UpkeepContext, base: str, backed_up_at: datetime, restore_id: str, *, is_new: bool) -> str:
    """Returns the first folder by this name, or by it with a suffix, that a restore can use.

    Args:
        care: of the catalog.
        base: where the catalog would put the table, or where the existing table lies.
        backed_up_at: part of the suffix, so that a second run finds the same folder.
        restore_id: of this restore, as its marker has it.
        is_new: whether `base` itself may be used.
    """
    others = list_occupied_folders(care)
    for candidate in _candidates(base.rstrip("/"), backed_up_at, is_new=is_new):
        is_free = not any(overlaps(canonical_folder(candidate), folder) for _, folder in others)
        if is_free and inspect_folder(get_target_folder(care, candidate), restore_id) != "used":
            return candidate
    raise ConflictError(f"no unused folder found beside {base}", hint="choose one with --target-location")


def require_usable(care: UpkeepContext, location: str, restore_id: str, source_folders: Iterable[str]) -> FolderState:
    """Checks a folder that the user chose.

    Raises:
        NotAllowedError: it lies inside a table's folder, or around one, or it overlaps with the folders of the source.
        ConflictError: it holds files that this restore did not write.
    """
    own = canonical_folder(location)
    for name, folder in list_occupied_folders(care):
        if overlaps(own, folder):
            raise NotAllowedError(
                f"cannot restore to {location}: it is in the place of the table {name}",
                cause=f"that table uses {folder}",
                hint="choose a folder that no table uses, or leave out --target-location",
            )
    for folder in map(canonical_folder_or_raw, source_folders):
        if own != folder and overlaps(own, folder):
            raise NotAllowedError(
                f"cannot restore to {location}: it overlaps with the folder of the original table",
                cause=f"the original uses {folder}",
                hint="choose a folder beside it, or leave out --target-location",
            )
    state = inspect_folder(get_target_folder(care, location), restore_id)
    if state == "used":
        raise ConflictError(
            f"cannot restore to {location}: the folder holds files that this restore did not write",
            hint="choose an empty folder, or leave out --target-location",
        )
    return state


def list_occupied_folders(care: UpkeepContext) -> list[tuple[str, str]]:
    """Returns the folders that tables of all catalogs write to, in canonical spelling, with the tables' names."""
    return [
        (name, canonical_folder_or_raw(folder)) for name, table in list_all_tables(care) for folder in table.folders
    ]


def inspect_folder(target: TargetFolder, restore_id: str) -> FolderState:
    """Returns whether a folder is empty, was begun by this restore, or is used by something else."""
    store = target.open()
    found = read_marker(store)
    if found is not None:
        return "begun" if found == restore_id else "used"
    return "empty" if next(iter(store.list()), None) is None else "used"


def claim_folder(target: TargetFolder, restore_id: str, backup: str) -> bool:
    """Writes the marker. Returns whether an earlier run of the same restore had done so.

    Raises:
        ConflictError: another restore has begun in this folder.
    """
    store = target.open()
    found = read_marker(store)
    if found is None:
        text = json.dumps({"restore": restore_id, "backup": backup, "began_at": datetime.now(UTC).isoformat()})
        try:
            store.put_if_absent(MARKER, text.encode())
        except ConflictError:
            found = read_marker(store)
        else:
            _require_nothing_else(target, store)
            return False
    if found != restore_id:
        raise ConflictError(
            f"another restore is writing to {target.location}", hint="wait for it, or choose another folder"
        )
    return True


def _require_nothing_else(target: TargetFolder, store: ObjectStore) -> None:
    """Requires that nothing was written to a folder since the plan, such as by a restore that is done by now."""
    if any(key != MARKER for key, _ in islice(target.list_sizes(), 2)):
        store.delete(MARKER)
        raise ConflictError(f"{target.location} was empty when the restore was planned, and is not", hint="try again")


def read_marker(store: ObjectStore) -> str | None:
    """Returns the id of the restore that a folder belongs to; '' if the marker cannot be read."""
    try:
        found = json.loads(store.get(MARKER))
    except NotFoundError:
        return None
    except ValueError:
        return ""
    return str(found.get("restore", "")) if isinstance(found, dict) else ""


def check_location(location: str) -> str:
    """Returns a location without slashes at its end.

    Raises:
        UsageError: it is relative, or not a location.
        NotAllowedError: it contains '..'.
    """
    parts = re.split(r"[/\\]", location)
    if ".." in parts or "." in parts:
        raise NotAllowedError(f"the location '{location}' contains '.' or '..'", hint="write the path without them")
    if "://" not in location and not location.startswith(("/", "file:/")):
        raise UsageError(f"the location '{location}' is relative", hint="a path with '/' in front, or s3://bucket/path")
    found = parse(location)
    if not found.key:
        raise NotAllowedError(f"cannot restore to the root {location}", hint="name a folder in it")
    return location.rstrip("/")


def find_existing_location(store: TableStore, identifier: tuple[str, ...]) -> str:
    """Returns where a table lies, whether or not PyIceberg knows its types."""
    found = store.call(lambda: read_metadata(store.catalog, identifier), "read_metadata")
    if found is None:
        raise NotFoundError(f"there is no table {'.'.join(identifier)} to replace", hint="restore it as a new one")
    return str(found[1]["location"])


def find_default_location(store: TableStore, identifier: tuple[str, ...]) -> str | None:
    """Returns where the catalog puts a new table of this name; None where it says so only once the namespace exists.

    Raises:
        UsageError: it does not say.
    """
    from pyiceberg.catalog import MetastoreCatalog
    from pyiceberg.exceptions import NoSuchNamespaceError

    def ask() -> str | None:
        try:
            return (
                _ask_metastore(store, identifier)
                if isinstance(store.catalog, MetastoreCatalog)
                else _ask_server(store, identifier)
            )
        except NoSuchNamespaceError:
            return None

    found = store.call(ask, "default_location")
    if found == "":
        raise UsageError(
            f"the catalog '{store.settings.name}' does not say where {'.'.join(identifier)} would lie",
            hint="name a folder: --target-location URI",
        )
    return found and found.rstrip("/")


def _ask_metastore(store: TableStore, identifier: tuple[str, ...]) -> str:
    from pyiceberg.catalog import Catalog
    from pyiceberg.exceptions import NoSuchNamespaceError

    catalog = store.catalog
    namespace = Catalog.namespace_to_string(identifier[:-1])
    try:
        location: str = catalog._resolve_table_location(None, namespace, identifier[-1])  # type: ignore[attr-defined]
    except NoSuchNamespaceError:  # it will be made
        warehouse = str(catalog.properties.get("warehouse") or "").rstrip("/")
        suffix = "" if store.settings.resolved_kind == "sql" else ".db"
        return f"{warehouse}/{namespace}{suffix}/{identifier[-1]}" if warehouse else ""
    except ValueError:
        return ""
    return location


def _ask_server(store: TableStore, identifier: tuple[str, ...]) -> str:
    """Asks a REST server: the namespace's location, or that of a table that is staged and never committed."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    location = store.catalog.load_namespace_properties(identifier[:-1]).get("location")
    if location:
        return f"{location.rstrip('/')}/{identifier[-1]}"
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    return store.catalog.create_table_transaction(identifier, schema).table_metadata.location


def _candidates(base: str, backed_up_at: datetime, *, is_new: bool) -> Iterator[str]:
    if is_new:
        yield base
    stamped = f"{_SUFFIX.sub('', base)}_restored_{backed_up_at.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    yield stamped
    yield from (f"{stamped}_{number}" for number in range(2, _TRIES))
