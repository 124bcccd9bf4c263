"""Which folders and files other tables refer to, so that upkeep deletes no file that another table reads.

Any table may refer to any file: `add_files`, Spark's `snapshot` and `migrate` import files where they lie. Manifests
never change, so the folders of a manifest's files are read once and remembered. The files themselves are looked up only
where a folder matches.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import TYPE_CHECKING

from frazil.observe.cancellation import raise_if_stopped
from frazil.tables.metadata.locations import add_link_targets, canonical_folder_or_raw, canonical_uri
from frazil.tables.metadata.reachable import (
    find_reachable_files,
    list_metadata_files,
    load_manifest_list,
    read_live_files,
)

if TYPE_CHECKING:
    from threading import Event

    from pyiceberg.table import Table

    from frazil.tables import TableStore

#: Folders as they are written: by table and manifest; of a whole table, with the time they were read.
_by_manifest: weakref.WeakKeyDictionary[TableStore, dict[str, dict[str, frozenset[str]]]] = weakref.WeakKeyDictionary()
_by_table: weakref.WeakKeyDictionary[TableStore, dict[str, tuple[float, frozenset[str]]]] = weakref.WeakKeyDictionary()
_lock = Lock()


def folders_of(store: TableStore, table: Table, stop: Event) -> set[str]:
    """The canonical folders of all files that a table refers to.

    Raises:
        IntegrityError: a manifest is damaged.
        NotFoundError: a manifest or list is missing.
        StoppedError: `stop` was set.
    """
    found: set[str] = set()
    for written in _written(store, table, stop):
        found |= written
    _remember(store, ".".join(table.name()), frozenset(found))
    return {canonical_folder_or_raw(folder) for folder in found}


def folders_seen(store: TableStore, name: str, believed_s: float) -> set[str] | None:
    """The same, as it was at most `believed_s` ago; None where the table was not looked at since."""
    with _lock:
        at, folders = _by_table.setdefault(store, {}).get(name, (0.0, None))
    if folders is None or time.monotonic() - at >= believed_s:
        return None
    return {canonical_folder_or_raw(folder) for folder in folders}


def files_among(store: TableStore, table: Table, files: Iterable[str], stop: Event) -> set[str]:
    """Those of some canonical files that a table refers to, be it through a link."""
    return set(files) & add_link_targets(find_reachable_files(store, table, stop))


def _written(store: TableStore, table: Table, stop: Event) -> Iterator[frozenset[str]]:
    """Of each manifest that the table has now. Those that it had at the last look are not read again."""
    name = ".".join(table.name())
    with _lock:
        memory = _by_manifest.setdefault(store, {})
        before = memory.setdefault(name, {})
    now: dict[str, frozenset[str]] = {}
    for snapshot in table.metadata.snapshots:
        yield frozenset([_folder(snapshot.manifest_list)])
        for manifest in load_manifest_list(store, table.io, snapshot.manifest_list):
            raise_if_stopped(stop)
            path = manifest.manifest_path
            if path not in now:
                if path not in before:
                    before[path] = _with_links(
                        [path, *(file.uri for file in read_live_files(store, table.io, manifest))]
                    )
                now[path] = before[path]
                yield now[path]
    yield _with_links([file.uri for file in list_metadata_files(table).values()])
    with _lock:
        memory[name] = now


def _with_links(uris: list[str]) -> frozenset[str]:
    """Folders as they are written, and those that single files are linked to."""
    found = {_folder(uri) for uri in uris}
    local = {canonical_uri(uri) for uri in uris if uri.startswith(("/", "file:"))}
    return frozenset(found | {_folder(uri) for uri in add_link_targets(local) - local})


def _folder(uri: str) -> str:
    folder = uri.rpartition("/")[0]
    return f"{folder}/" if folder.endswith((":", "/")) or not folder else folder


def _remember(store: TableStore, name: str, folders: frozenset[str]) -> None:
    with _lock:
        _by_table.setdefault(store, {})[name] = (time.monotonic(), folders)
