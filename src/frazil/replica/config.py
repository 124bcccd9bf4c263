"""Which tables are replicated, from where, and to which catalog: by the settings, or by a command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from frazil.catalogs import parse_name
from frazil.errors import ConfigError, NotFoundError, UsageError
from frazil.replica.candidates import find_table_folder
from frazil.replica.scan import ReplicaFiles, canonical_path
from frazil.settings import CatalogSettings, Settings
from frazil.settings.model import ReplicaTableSettings, check_name
from frazil.storage import parse
from frazil.tables.metadata.locations import is_inside

Mode = Literal["metadata", "data-files"]

#: What is added to the replicated path for a place beside it.
BESIDE = "-replica"
_METADATA = "/metadata/"


@dataclass(frozen=True)
class ReplicaConfig:
    """A table to keep up to date.

    Attributes:
        name: in the replica's catalog, `namespace.table`.
        catalog: its name in the settings.
        replicated_path: folder that the source's storage is copied to: that of the table, or one above it.
        warehouse: where relocated metadata goes.
        mode: whether the folder holds Iceberg metadata, or bare Parquet files.
        source_prefixes: source prefixes, and where they landed; that of the table's own folder is found.
        witnessed_only: wait for a proof that a version was committed.
        current_only: keep the current snapshot only.
        partition: of a new table of bare Parquet files.
        prune_missing: take files out of such a table that are gone.
        compact: keep such a table compact, by the policy of upkeep.
        max_lag_s: what the alert rules call late.
    """

    name: str
    catalog: str
    replicated_path: str
    warehouse: str
    mode: Mode = "metadata"
    source_prefixes: tuple[tuple[str, str], ...] = ()
    witnessed_only: bool = False
    current_only: bool = False
    partition: tuple[str, ...] = ()
    prune_missing: bool = False
    compact: bool = False
    max_lag_s: float = 3600.0

    @property
    def identifier(self) -> tuple[str, ...]:
        return parse_name(self.name, self.catalog)


def resolve_config(
    settings: Settings,
    name: str,
    *,
    catalog: str | None = None,
    replicated_path: str | None = None,
    warehouse: str | None = None,
) -> ReplicaConfig:
    """Returns how a table is replicated, by `replica.tables` and `replica`, and by what is given here.

    Args:
        settings: all of them.
        name: `namespace.table`, perhaps with the catalog's name.
        catalog: name of the replica's catalog.
        replicated_path: folder that the source's storage is copied to.
        warehouse: where relocated metadata goes.

    Raises:
        UsageError: the name is invalid; or it is not known where the table's storage is copied to, or where
            relocated metadata goes.
        NotFoundError: there is no such catalog.
    """
    common = settings.model.replica
    own = common.tables.get(name) or ReplicaTableSettings()
    chosen = settings.catalog(catalog or own.catalog)
    table = ".".join(parse_name(name, chosen.name))
    own = common.tables.get(table) or own
    path = replicated_path or own.replicated_path or common.replicated_path
    if path is None:
        raise UsageError(
            f"it is not known where the storage of {table} is copied to",
            hint=f"--replicated-path, or replica.tables.{table}.replicated_path in frazil.yaml",
        )
    place = warehouse or own.warehouse or common.warehouse or _warehouse_of(chosen)
    if place is None:
        raise UsageError(
            f"it is not known where relocated metadata of {table} should go",
            cause=f"catalog '{chosen.name}' has no warehouse that is a folder",
            hint="--warehouse, or replica.warehouse in frazil.yaml",
        )
    return ReplicaConfig(
        table,
        chosen.name,
        path,
        place,
        own.mode,
        tuple(own.source_prefixes.items()),
        common.witnessed_only if own.witnessed_only is None else own.witnessed_only,
        partition=tuple(own.partition),
        prune_missing=own.prune_missing,
        compact=common.compact if own.compact is None else own.compact,
        max_lag_s=own.max_lag_s or common.max_lag_s,
    )


def list_configs(settings: Settings, names: Sequence[str] = ()) -> list[ReplicaConfig]:
    """Returns how the tables of the settings are replicated.

    Args:
        settings: with `replica.tables`.
        names: only these; by default all.

    Raises:
        NotFoundError: the settings have no such table, or none at all.
        ConfigError: one of them is not complete.
    """
    tables = settings.model.replica.tables
    if not tables:
        raise NotFoundError("the settings name no tables to replicate", hint="replica.tables, see docs/replica.md")
    for name in names:
        if name not in tables:
            raise NotFoundError(f"replica.tables has no '{name}'", hint=f"one of: {', '.join(sorted(tables))}")
    found = []
    for name in names or tables:
        try:
            found.append(resolve_config(settings, name))
        except UsageError as error:
            raise ConfigError(f"replica.tables.{name}: {error.message}", cause=error.cause, hint=error.hint) from error
    return found


def _warehouse_of(catalog: CatalogSettings) -> str | None:
    """A REST catalog has a name there, and not a place."""
    return None if catalog.kind == "rest" else catalog.warehouse


# -- the source system's commands --------------------------------------------------------------------------------------


def embed_catalog(settings: Settings, name: str, warehouse: str) -> Settings:
    """Returns the settings with a further catalog: an embedded one in a warehouse.

    Its database lies in the warehouse, or for a bucket in `home`.

    Raises:
        UsageError: this cannot be a catalog's name.
    """
    try:
        check_name(name)
    except ValueError as error:
        raise UsageError(f"'{name}' cannot be the name of a catalog", cause=str(error)) from error
    location = parse(warehouse)
    database = location.path / "catalog.db" if location.scheme == "file" else settings.model.home / f"{name}.db"
    catalog = CatalogSettings(name=name, kind="sql", uri=f"sqlite:///{database}", warehouse=warehouse)
    model = settings.model.model_copy(update={"catalogs": {**settings.model.catalogs, name: catalog}})
    return replace(settings, model=model)


def move_beside(replicated_path: str, warehouse: str) -> str:
    """Returns the warehouse; one that lies in the replicated path is moved beside that, because nothing writes there.

    Raises:
        UsageError: there is no place beside it.
    """
    root = canonical_path(replicated_path)
    if not is_inside(canonical_path(warehouse), root):
        return warehouse
    below = root.partition("://")[2]
    if not below.rstrip("/").partition("/")[2]:
        raise UsageError(
            f"relocated metadata cannot go to {warehouse}: that is the replicated storage as a whole",
            hint="another folder or bucket: --warehouse",
        )
    return f"{replicated_path.rstrip('/')}{BESIDE}"


def discover_tables(files: ReplicaFiles) -> list[tuple[str, str]]:
    """Returns name and folder of each Iceberg table below a replicated folder, by the names of the folders.

    Lists everything that is there. `sales.db/orders` and `sales/orders` are both `sales.orders`; a UUID that a catalog
    appends to the folder of a table does not count.

    Raises:
        NotFoundError: there is none.
        UsageError: the name of one is not known, or two have the same.
    """
    found: dict[str, str] = {}
    for folder in _list_folders(files):
        parts = folder[len(files.root) :].strip("/").split("/")
        if len(parts) < 2:
            raise UsageError(
                f"the name of the table in {folder} is not known",
                cause="below the replicated path its folders should be <namespace>/<table>",
                hint=f"--database NAME --table {parts[0] or 'NAME'}",
            )
        *namespace, table = parts
        namespace[-1] = namespace[-1].removesuffix(".db")
        name = ".".join((*namespace, _strip_uuid(table)))
        if name in found:
            raise UsageError(f"two folders hold a table {name}", cause=f"{found[name]} and {folder}", hint="--table")
        found[name] = folder
    if not found:
        find_table_folder(files)  # its error says what is missing
    return sorted(found.items())


def _list_folders(files: ReplicaFiles) -> Iterable[str]:
    paths = (file.path for file in files.list())
    return sorted(
        {path.rpartition(_METADATA)[0] for path in paths if path.endswith(".metadata.json") and _METADATA in path}
    )


def _strip_uuid(folder: str) -> str:
    return re.sub(r"[-_][0-9a-f]{8}-?[0-9a-f-]{20,27}$", "", folder, flags=re.IGNORECASE)
