"""Finds tables by the names people type."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from frazil.catalogs.failures import translated
from frazil.catalogs.kinds import abilities_of
from frazil.errors import FrazilError, IntegrityError, NotFoundError, UnsupportedError, UsageError
from frazil.settings import CatalogSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

Identifier = tuple[str, ...]


def parse_name(name: str, catalog: str) -> Identifier:
    """Parses `namespace.table`, or `catalog.namespace.table` if the first part is this catalog's name."""
    parts = tuple(part.strip('`"') for part in name.split("."))
    if len(parts) > 2 and parts[0] == catalog:
        parts = parts[1:]
    if len(parts) < 2 or not all(parts):
        raise UsageError(f"'{name}' is not a table name", hint="namespace.table, for example demo.photos")
    return parts


def load_table(catalog: Catalog, settings: CatalogSettings, name: str) -> Table:
    """Loads a table by name.

    Raises:
        NotFoundError: there is none; it names the nearest that exists.
        UnsupportedError: PyIceberg cannot parse its metadata.
        IntegrityError: its metadata is damaged.
    """
    from pydantic import ValidationError as PydanticError
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError

    identifier = parse_name(name, settings.name)
    with translated(settings):
        try:
            return catalog.load_table(identifier)
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            near = _nearest(catalog, ".".join(identifier))
            raise NotFoundError(
                f"catalog '{settings.name}' has no table '{'.'.join(identifier)}'",
                cause="",
                hint=f"{near}" if near else "frazil table list",
            ) from error
        except (ValidationError, PydanticError, TypeError, KeyError) as error:  # on types and defaults it does not know
            raise _unparsable(identifier, error) from error


def _unparsable(identifier: Identifier, error: Exception) -> FrazilError:
    import pyiceberg

    name = ".".join(identifier)
    if "Invalid JSON" in str(error):
        return IntegrityError(
            f"the metadata of {name} is damaged: it is not valid JSON",
            cause=" ".join(str(error).split())[:300],
            hint=f"register {name} again with an older metadata file, or restore it from a backup",
        )
    return UnsupportedError(
        f"the metadata of {name} cannot be parsed by PyIceberg {pyiceberg.__version__}: the table uses a type, "
        f"default or feature of Iceberg that PyIceberg does not support",
        cause=" ".join(str(error).split())[:300],
        hint=f"query it with Spark (frazil sql --engine spark), which reads {name}; Frazil cannot maintain it yet",
    )


def may_be_view(catalog: Catalog, settings: CatalogSettings, identifier: Identifier) -> bool:
    """Returns False if no Iceberg view has this name; True if one does, or if PyIceberg cannot tell."""
    with translated(settings):
        if not abilities_of(settings, dict(catalog.properties)).views:
            return False
        if settings.kind == "sql":
            return _in_sql_catalog(catalog, identifier)
        try:
            return catalog.view_exists(identifier)
        except NotImplementedError:
            return catalog.namespace_exists(identifier[:-1])


def _in_sql_catalog(catalog: Catalog, identifier: Identifier) -> bool:
    """Looks for a view as Spark stores it: PyIceberg hides all but tables."""
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
    from sqlalchemy import select

    assert isinstance(catalog, SqlCatalog), "choose the catalog in the settings"
    names = select(IcebergTables.table_name).where(
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == ".".join(identifier[:-1]),
        IcebergTables.table_name == identifier[-1],
    )
    with catalog.engine.connect() as connection:
        return connection.execute(names).first() is not None


def list_namespaces(catalog: Catalog, parent: Identifier = ()) -> Iterator[Identifier]:
    """Yields every namespace, nested ones too."""
    from pyiceberg.exceptions import NoSuchNamespaceError

    try:
        found = catalog.list_namespaces(parent)
    except NoSuchNamespaceError:
        return
    for namespace in sorted(found):
        if namespace == parent or namespace[: len(parent)] != parent:
            continue
        yield namespace
        if len(namespace) < 8 and _nests(catalog):
            yield from list_namespaces(catalog, namespace)


def _nests(catalog: Catalog) -> bool:
    # Glue and Hive have one level; asking them for more is an error.
    return not {"GlueCatalog", "HiveCatalog"} & {kind.__name__ for kind in type(catalog).__mro__}


def list_tables(catalog: Catalog, settings: CatalogSettings, namespace: str | None = None) -> list[Identifier]:
    with translated(settings):
        if namespace is not None:
            parts = tuple(namespace.split("."))
            if not catalog.namespace_exists(parts):
                raise NotFoundError(
                    f"catalog '{settings.name}' has no namespace '{namespace}'", hint="frazil table list"
                )
            return sorted(catalog.list_tables(parts))
        return sorted(t for ns in list_namespaces(catalog) for t in catalog.list_tables(ns))


def _nearest(catalog: Catalog, wanted: str) -> str | None:
    try:
        names = [".".join(t) for ns in list_namespaces(catalog) for t in catalog.list_tables(ns)]
    except Exception:  # noqa: BLE001 - a hint must not hide the error it belongs to
        return None
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    return close[0] if close else None
