"""Opens a catalog through PyIceberg, within a bounded time, and says in our words what went wrong."""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from frazil.catalogs.aws import with_keys
from frazil.catalogs.failures import translated
from frazil.catalogs.locations import local_path
from frazil.catalogs.properties import BUSY_SECONDS, pyiceberg_properties, sqlite_file
from frazil.errors import ConfigError, NotAllowedError, UnavailableError
from frazil.settings import CatalogSettings, NetworkSettings, environment
from frazil.settings.permissions import make_private, make_private_folder, open_private

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

#: The JDBC catalog's schema V1, as Iceberg for Java and PyIceberg both define it.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS iceberg_tables (
    catalog_name VARCHAR(255) NOT NULL,
    table_namespace VARCHAR(255) NOT NULL,
    table_name VARCHAR(255) NOT NULL,
    metadata_location VARCHAR(1000),
    previous_metadata_location VARCHAR(1000),
    iceberg_type VARCHAR(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);
CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
    catalog_name VARCHAR(255) NOT NULL,
    namespace VARCHAR(255) NOT NULL,
    property_key VARCHAR(255) NOT NULL,
    property_value VARCHAR(1000),
    PRIMARY KEY (catalog_name, namespace, property_key)
);
"""

_DEFAULT_PORTS = {"http": 80, "https": 443, "thrift": 9083}


def open_catalog(settings: CatalogSettings, network: NetworkSettings | None = None) -> Catalog:
    """Opens a catalog through PyIceberg. Creates the embedded one on first use.

    Raises:
        UnavailableError: its server, or that of its files, does not answer.
        CredentialsError: it refuses our credentials.
        NotAllowedError: the embedded one's folder cannot be written.
        ConfigError: the embedded one has no home folder to lie in, or one with a name that cannot be used.
    """
    network = network or NetworkSettings()
    if settings.s3 is not None and settings.s3.profile:
        settings = settings.model_copy(update={"s3": with_keys(settings.s3)})
    kind = settings.resolved_kind
    if kind == "sql":
        prepare_embedded(settings)
    elif kind in ("rest", "hive"):
        probe(settings.uri or "", network.connect_timeout)
    elif settings.endpoint:
        probe(settings.endpoint, network.connect_timeout)
    if settings.s3 is not None and settings.s3.endpoint and _may_lie_on_s3(settings):
        probe(settings.s3.endpoint, network.connect_timeout, what="s3.endpoint")
    with translated(settings):
        if kind == "rest":
            from frazil.catalogs.rest import with_endpoint

            settings = with_endpoint(settings, network)
        return _open(settings, pyiceberg_properties(settings, network), network)


def _may_lie_on_s3(settings: CatalogSettings) -> bool:
    warehouse = settings.warehouse or ""
    decides_itself = settings.resolved_kind in ("rest", "glue") and local_path(warehouse) is None
    return decides_itself or warehouse.startswith(("s3://", "s3a://"))


def _open(settings: CatalogSettings, properties: dict[str, str], network: NetworkSettings) -> Catalog:
    kind = settings.resolved_kind
    if kind == "rest":
        from frazil.catalogs.rest import TimedRestCatalog

        return TimedRestCatalog(settings.name, network, **properties)
    if kind == "glue":
        from frazil.catalogs.glue import GluePointers, glue_client

        return GluePointers(settings.name, client=glue_client(settings, network), **properties)
    # The classes themselves: PyIceberg's load_catalog would mix its own configuration in once more.
    if kind == "hive":
        from frazil.catalogs.hive import TimedHiveCatalog

        return TimedHiveCatalog(settings.name, network, **properties)
    from frazil.catalogs.embedded import EmbeddedCatalog

    return EmbeddedCatalog(settings.name, **properties)


def probe(uri: str, timeout: float, *, what: str = "catalog") -> None:
    """Fails at once if no server listens: the engines would retry for minutes.

    Args:
        uri: of the server.
        timeout: seconds to wait for it.
        what: the setting that names it, for the hint.
    """
    parts = urlsplit(uri)
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 443)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=timeout).close()
    except OSError as error:
        raise UnavailableError(
            f"cannot connect to {parts.hostname}:{port}",
            cause=str(error),
            hint=f"start the server, or check its address: frazil config show {what}",
        ) from error


def prepare_embedded(settings: CatalogSettings) -> None:
    """Makes the embedded catalog's file and warehouse, ready for two engines at once."""
    file, warehouse = sqlite_file(settings), settings.warehouse or ""
    environment.require_known(str(file), "home")
    environment.require_known(warehouse, "home")
    folders = [file.parent]
    if (local := local_path(warehouse)) is not None:
        _require_usable(local)
        folders.append(Path(local))
    for folder in folders:  # all are looked at before any is made
        _require_writable(folder)
    if not file.exists():
        _make(file.parent, make_private_folder)
    _keep_private(file)
    with translated(settings), closing(sqlite3.connect(file, timeout=BUSY_SECONDS)) as connection:
        # Readers do not block writers, nor the other way round. It is kept in the file, so both engines have it.
        if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            connection.execute("PRAGMA journal_mode=WAL")
        # Both engines would make these, each with a look before the leap, which two at once do not survive.
        connection.executescript(_SCHEMA)
    for folder in folders:
        _make(folder)


def _require_usable(warehouse: str) -> None:
    if "?" in warehouse or "#" in warehouse:
        raise ConfigError(
            f"a warehouse cannot be located in {warehouse}",
            cause="PyIceberg truncates paths at '?' and '#', and would write to another location than Spark",
            hint="choose another folder: --set home=DIR, or --set catalog.warehouse=DIR",
        )


def _require_writable(folder: Path) -> None:
    """Checks that the folder, or its nearest existing parent, can be written."""
    above = next(part for part in (folder, *folder.parents) if part.exists())
    if not above.is_dir():
        raise NotAllowedError(
            f"cannot create {folder}", cause=f"{above} is a file", hint="choose another folder: --set home=DIR"
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise NotAllowedError(
            f"{above} is not writable", hint=f"chmod u+w {above}, or choose another folder: --set home=DIR"
        )


def _keep_private(file: Path) -> None:
    """Lets only this user read the catalog's file. One that a group may write is shared on purpose, and stays."""
    with suppress(OSError):  # the connection says it better
        if not file.exists():  # another is not opened: closing it would take SQLite's locks from this process
            os.close(open_private(file, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        if not file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            for path in (file, file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")):
                make_private(path)


def _make(
    folder: Path, make: Callable[[Path], None] = lambda folder: folder.mkdir(parents=True, exist_ok=True)
) -> None:
    try:
        make(folder)
    except OSError as error:
        raise NotAllowedError(
            f"cannot create {folder}", cause=error.strerror, hint="choose another folder: --set home=DIR"
        ) from error
