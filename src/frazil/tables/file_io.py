"""Files of tables as PyIceberg reads and writes them: by PyArrow, and by file systems of rooms above."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyiceberg.io import (
    ADLS_ACCOUNT_KEY,
    ADLS_ACCOUNT_NAME,
    ADLS_BLOB_STORAGE_AUTHORITY,
    ADLS_BLOB_STORAGE_SCHEME,
    ADLS_DFS_STORAGE_AUTHORITY,
    ADLS_DFS_STORAGE_SCHEME,
    ADLS_SAS_TOKEN,
    ARROW_FILE_IO,
    SCHEMA_TO_FILE_IO,
)
from pyiceberg.io.pyarrow import PyArrowFileIO

from frazil.settings import environment

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_AZURE = ("abfs", "abfss")
#: File systems that PyArrow does not have, by scheme. Their paths are whole URIs.
_REGISTERED: dict[str, Callable[[], FileSystem]] = {}


def register_file_system(scheme: str, open_file_system: Callable[[], FileSystem]) -> None:
    """Makes PyIceberg read and write a scheme through a file system, in tables that are loaded from now on."""
    _REGISTERED[scheme] = open_file_system
    register_file_io()


def register_file_io() -> None:
    """Makes PyIceberg use `TableFileIO`, except for catalogs whose properties have `py-io-impl`."""
    name = f"{TableFileIO.__module__}.{TableFileIO.__qualname__}"
    for scheme in {*_REGISTERED, *(scheme for scheme, known in SCHEMA_TO_FILE_IO.items() if ARROW_FILE_IO in known)}:
        SCHEMA_TO_FILE_IO[scheme] = [name]


class TableFileIO(PyArrowFileIO):
    """One for all schemes, because a replica's metadata and data may lie in different storage.

    PyArrow knows only the short form of `abfss://container@account.dfs.core.windows.net/path`. Access to Azure is that
    of the properties `adls.*`, and otherwise that of the environment, as `frazil.storage` has it.
    """

    @staticmethod
    def parse_location(location: str, properties: Any = None) -> tuple[str, str, str]:
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties or {})
        if scheme in _REGISTERED:
            return scheme, netloc, location
        if scheme in _AZURE and "@" in netloc:
            return scheme, netloc, path.replace(netloc, netloc.partition("@")[0], 1)
        return scheme, netloc, path

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        if scheme in _REGISTERED:
            return _REGISTERED[scheme]()
        if scheme not in _AZURE:
            return super()._initialize_fs(scheme, netloc)
        access = {**_access_from_environment(), **_account_in(netloc or ""), **self.properties}
        return PyArrowFileIO(access)._initialize_fs(scheme, netloc)


def _account_in(netloc: str) -> dict[str, str]:
    account = netloc.partition("@")[2].partition(".")[0]
    return {ADLS_ACCOUNT_NAME: account} if account else {}


def _access_from_environment() -> dict[str, str]:
    access = environment.azure_access()
    found = {ADLS_ACCOUNT_KEY: access.account_key}
    if access.account_key is None:
        found[ADLS_SAS_TOKEN] = access.sas_token
    if access.endpoint is not None:
        parts = urlsplit(access.endpoint)
        found |= dict.fromkeys((ADLS_BLOB_STORAGE_AUTHORITY, ADLS_DFS_STORAGE_AUTHORITY), parts.netloc)
        found |= dict.fromkeys((ADLS_BLOB_STORAGE_SCHEME, ADLS_DFS_STORAGE_SCHEME), parts.scheme)
    return {name: value for name, value in found.items() if value is not None}
