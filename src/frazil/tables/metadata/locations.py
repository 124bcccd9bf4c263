"""The storage that a table's files lie in, by URI, whatever spelling a writer chose for it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from pydantic import SecretStr

from frazil.catalogs import flavor_of
from frazil.errors import UsageError
from frazil.settings import CatalogSettings, NetworkSettings, S3Settings, Settings
from frazil.storage import Location, ObjectInfo, ObjectStore, open_store, parse

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables.store import TableStore

#: What servers that lend keys say of them, and our names for it.
_LENT = {
    "s3.endpoint": "endpoint",
    "s3.region": "region",
    "s3.access-key-id": "access_key",
    "s3.secret-access-key": "secret_key",
    "s3.session-token": "session_token",
}
_SECRETS = ("secret_key", "session_token")


def canonical_uri(uri: str) -> str:
    """Returns the canonical URI of a file: with a scheme, and with the symbolic links of its local folder resolved.

    Two URIs mean the same file if their canonical URIs are equal; listings use this spelling too. For a folder, use
    `canonical_folder`: the last component of a file is not resolved, because a listing shows the name of a link.
    """
    folder, slash, name = uri.rpartition("/")
    if not slash or name in ("", ".", "..") or not folder or folder.endswith((":", "/")):
        return canonical_folder(uri)
    return f"{canonical_folder(folder)}/{name}"


@lru_cache(maxsize=16384)
def canonical_folder(uri: str) -> str:
    """Returns the canonical URI of a folder: with a scheme, and with all symbolic links resolved, the last one too.

    Links are resolved once and remembered until `clear_link_cache`.
    """
    location = parse(uri)
    if location.scheme == "file":
        location = parse(os.path.realpath(location.path))
    return str(location).rstrip("/")


def canonical_folder_or_raw(folder: str) -> str:
    """Returns the canonical URI of another table's folder; unchanged if Frazil does not support its storage (HDFS)."""
    try:
        return canonical_folder(folder)
    except UsageError:
        return folder


def clear_link_cache() -> None:
    """Makes the next spelling resolve links anew. Call it before each action that deletes: links may have changed."""
    canonical_folder.cache_clear()


def add_link_targets(uris: Iterable[str]) -> set[str]:
    """Files by their canonical URIs, and also what those that are local links lead to."""
    found = set(uris)
    local = [uri for uri in found if uri.startswith("file:")]
    return found | {canonical_folder(uri) for uri in local if parse(uri).path.is_symlink()}


def is_inside(uri: str, folder: str) -> bool:
    """Whether a place is a folder or lies below it, both in canonical spelling."""
    return uri == folder or uri.startswith(f"{folder}/")


def overlaps(one: str, other: str) -> bool:
    return is_inside(one, other) or is_inside(other, one)


def list_own_folders(table: Table) -> list[str]:
    """Returns the canonical folders that a table writes to."""
    return list(dict.fromkeys(map(canonical_folder, list_named_locations(table))))


def filter_own_files(table: Table, uris: Iterable[str]) -> set[str]:
    """Returns the canonical URIs of the files that lie in the table's own folders.

    Only these are ever deleted. Files elsewhere, such as imported ones, may belong to others and stay.
    """
    folders = list_own_folders(table)
    return {uri for uri in map(canonical_uri, uris) if any(is_inside(uri, folder) for folder in folders)}


def list_named_locations(table: Table) -> list[str]:
    """Returns the table's location and the data and metadata paths of its properties, as spelled there."""
    properties = table.metadata.properties
    named = (
        "write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path",
    )  # fmt: skip
    return [table.location(), *(properties[key] for key in named if properties.get(key))]


def is_service_managed(store: TableStore) -> bool:
    """Whether the service deletes unreferenced files itself, and accepts no other files than Iceberg's: S3 Tables."""
    return flavor_of(store.settings, dict(store.catalog.properties)) == "s3tables"


class UriStorage:
    """Opens files by URI, with one store per folder and per bucket. Thread safe; can be pickled for other processes.

    Args:
        s3: access to S3.
        network: patience with its servers.
        folders: canonical ones; files in them share a store whose keys begin there.
    """

    def __init__(self, s3: S3Settings, network: NetworkSettings, folders: Iterable[str] = ()) -> None:
        self.s3, self.network = s3, network
        self._roots = tuple(sorted(folders, key=len, reverse=True))
        self._stores: dict[str, ObjectStore] = {}

    def find(self, uri: str) -> tuple[ObjectStore, str]:
        """Returns the store of a file, and the file's key there."""
        uri = canonical_uri(uri)
        root = next((r for r in self._roots if uri.startswith(f"{r}/")), None)
        location = parse(uri)
        if root is None:
            root = str(Location(location.scheme, location.authority, ""))
            return self._open(root), location.key
        return self._open(root), uri[len(root) + 1 :]

    def read(self, uri: str) -> bytes:
        """Reads a whole file."""
        store, key = self.find(uri)
        return store.get(key)

    def measure(self, uri: str) -> int:
        """Its size, or NotFoundError."""
        store, key = self.find(uri)
        return store.head(key).size

    def list(self, folder: str) -> Iterator[tuple[str, ObjectInfo]]:
        """Lists everything below a folder, with canonical URIs."""
        root = canonical_folder(folder)
        for info in self._open(root).list():
            yield f"{root}/{info.key}", info

    def _open(self, root: str) -> ObjectStore:
        if root not in self._stores:
            self._stores[root] = open_store(root, s3=self.s3, network=self.network)
        return self._stores[root]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UriStorage) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self._roots)

    def __reduce__(self) -> tuple[type[UriStorage], tuple[S3Settings, NetworkSettings, tuple[str, ...]]]:
        return UriStorage, (self.s3, self.network, self._roots)


class TableStorage(UriStorage):
    """Opens what a table's files lie in, with the keys that its catalog lends, if it does."""

    def __init__(self, settings: Settings, catalog: CatalogSettings, table: Table) -> None:
        s3 = _with_lent_keys(catalog.s3 or settings.model.s3, dict(table.io.properties))
        super().__init__(s3, settings.model.network, list_own_folders(table))


def _with_lent_keys(s3: S3Settings, properties: dict[str, str]) -> S3Settings:
    """Settings with what the catalog says of a table's storage: some lend keys for one table at a time."""
    lent = {ours: properties[theirs] for theirs, ours in _LENT.items() if properties.get(theirs)}
    if "access_key" in lent and "secret_key" in lent:
        values = {k: SecretStr(v) if k in _SECRETS else v for k, v in lent.items()}
        return s3.model_copy(update={"session_token": None, "profile": None, **values})
    return s3
