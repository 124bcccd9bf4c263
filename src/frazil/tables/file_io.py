"""Files of tables as PyIceberg reads and writes them: by PyArrow, and by file systems of rooms above."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyiceberg.io import (
    ADLS_ACCOUNT_KEY,
    ADLS_ACCOUNT_NAME,
    ADLS_ANON,
    ADLS_BLOB_STORAGE_AUTHORITY,
    ADLS_BLOB_STORAGE_SCHEME,
    ADLS_CLIENT_ID,
    ADLS_CLIENT_SECRET,
    ADLS_CONNECTION_STRING,
    ADLS_CREDENTIAL,
    ADLS_DFS_STORAGE_AUTHORITY,
    ADLS_DFS_STORAGE_SCHEME,
    ADLS_SAS_TOKEN,
    ADLS_TOKEN,
    ARROW_FILE_IO,
    SCHEMA_TO_FILE_IO,
)
from pyiceberg.io.pyarrow import PyArrowFileIO

from frazil.settings import environment

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyiceberg.io import FileIO

_AZURE = ("abfs", "abfss", "wasb", "wasbs")
#: Access to Azure that fsspec has and PyArrow has not.
_ONLY_FSSPEC = (ADLS_CONNECTION_STRING, ADLS_TOKEN, ADLS_CREDENTIAL)
_CREDENTIALS = (ADLS_ACCOUNT_KEY, ADLS_SAS_TOKEN, ADLS_CLIENT_ID, ADLS_CLIENT_SECRET, ADLS_ANON, *_ONLY_FSSPEC)
#: Followed by the account's host, in the properties that a REST catalog vends.
_SAS_TOKEN_OF = f"{ADLS_SAS_TOKEN}."
#: File systems that PyArrow does not have, by scheme. Their paths are whole URIs.
_REGISTERED: dict[str, Callable[[], FileSystem]] = {}


def register_file_system(scheme: str, open_file_system: Callable[[], FileSystem]) -> None:
    """Makes PyIceberg read and write a scheme through a file system, in tables that are loaded from now on."""
    _REGISTERED[scheme] = open_file_system
    register_file_io()


def register_file_io() -> None:
    """Makes PyIceberg use `TableFileIO`, except for catalogs whose properties have `py-io-impl`.

    Catalogs whose access to Azure only fsspec has keep that.
    """
    for scheme in {*_REGISTERED, *(scheme for scheme, known in SCHEMA_TO_FILE_IO.items() if ARROW_FILE_IO in known)}:
        opener = open_azure_file_io if scheme in _AZURE else TableFileIO
        SCHEMA_TO_FILE_IO[scheme] = [f"{opener.__module__}.{opener.__qualname__}"]


class TableFileIO(PyArrowFileIO):
    """One for all schemes, because a replica's metadata and data may lie in different storage.

    PyArrow knows only the short form of `abfss://container@account.dfs.core.windows.net/path`. Access to Azure is that
    of the properties `adls.*` if there is a credential among them, and otherwise that of the environment, as
    `frazil.storage` has it.
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
        return PyArrowFileIO(_find_access(self.properties, netloc or ""))._initialize_fs(scheme, netloc)


def open_azure_file_io(properties: dict[str, Any]) -> FileIO:
    """Opens what PyIceberg uses for a table in Azure."""
    if any(name in properties for name in _ONLY_FSSPEC):
        from pyiceberg.io.fsspec import FsspecFileIO

        return FsspecFileIO(properties)
    return TableFileIO(properties)


def _find_access(properties: dict[str, Any], netloc: str) -> dict[str, Any]:
    """Returns the properties with which PyArrow opens `container@host`."""
    host = netloc.partition("@")[2]
    account = {ADLS_ACCOUNT_NAME: host.partition(".")[0]} if host else {}
    has_credentials = any(name in _CREDENTIALS or name.startswith(_SAS_TOKEN_OF) for name in properties)
    access = {**_endpoint_from_environment(), **account, **({} if has_credentials else _key_from_environment())}
    access |= properties
    vended = properties.get(f"{_SAS_TOKEN_OF}{host}")
    if vended and not any(name in properties for name in _CREDENTIALS):
        access[ADLS_SAS_TOKEN] = vended
    if token := access.get(ADLS_SAS_TOKEN):
        # PyArrow appends it to the address as it is; Azure and catalogs give it without the question mark.
        access[ADLS_SAS_TOKEN] = f"?{token.removeprefix('?')}"
    return access


def _key_from_environment() -> dict[str, str]:
    access = environment.azure_access()
    if access.account_key is not None:
        return {ADLS_ACCOUNT_KEY: access.account_key}
    return {} if access.sas_token is None else {ADLS_SAS_TOKEN: access.sas_token}


def _endpoint_from_environment() -> dict[str, str]:
    endpoint = environment.azure_access().endpoint
    if endpoint is None:
        return {}
    parts = urlsplit(endpoint)
    return {
        ADLS_BLOB_STORAGE_AUTHORITY: parts.netloc,
        ADLS_DFS_STORAGE_AUTHORITY: parts.netloc,
        ADLS_BLOB_STORAGE_SCHEME: parts.scheme,
        ADLS_DFS_STORAGE_SCHEME: parts.scheme,
    }
