"""Which tables are meant: of a catalog for a backup, and of a backup for a restore."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence

from frazil.backup.format import BackedUpTable, BackupRecord
from frazil.backup.repository import Repository
from frazil.catalogs import list_tables
from frazil.errors import NotFoundError, UsageError
from frazil.settings import CatalogSettings, Settings
from frazil.tables import TableStore


def list_tables_of(store: TableStore, namespace: str | None = None) -> list[str]:
    """Returns the tables of a catalog, or of a namespace in it, as `namespace.table`.

    Raises:
        NotFoundError: there is none, or no such namespace.
    """
    found = [".".join(name) for name in list_tables(store.catalog, store.settings, namespace)]
    if not found:
        where = f"namespace '{namespace}'" if namespace else f"catalog '{store.settings.name}'"
        raise NotFoundError(f"{where} has no tables to back up", hint="frazil table list")
    return sorted(found)


def match_tables(names: Iterable[str], patterns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the tables that the patterns name, and the patterns that name none. Pure."""
    there = sorted(names)
    found = {pattern: fnmatch.filter(there, pattern) for pattern in patterns}
    chosen = {name for matches in found.values() for name in matches}
    return sorted(chosen), [pattern for pattern, matches in found.items() if not matches]


def find_record(repository: Repository, name: str) -> BackupRecord:
    """Returns a backup by name; `latest` is the newest one that can be read.

    Raises:
        NotFoundError: there is none.
    """
    if name != "latest":
        return repository.read_record(name)
    found = [record for record in repository.list_records() if isinstance(record, BackupRecord)]
    if not found:
        raise NotFoundError(f"the repository {repository.root} has no backups", hint="frazil backup create demo.photos")
    return found[-1]


def find_tables(record: BackupRecord, name: str | None = None) -> list[BackedUpTable]:
    """Returns the tables of a backup, or the one of this name: `table`, `namespace.table` or with the catalog's name.

    Raises:
        NotFoundError: the backup has no such table; the hint offers a near name.
        UsageError: several tables of the backup have this name.
    """
    if name is None:
        return list(record.tables)
    wanted = tuple(part.strip('`"') for part in name.split("."))
    found = [t for t in record.tables if wanted == (t.catalog, *t.identifier)[-len(wanted) :]]
    if len(found) > 1:
        raise UsageError(
            f"backup '{record.name}' has several tables named '{name}'",
            hint=f"one of: {', '.join('.'.join((t.catalog, *t.identifier)) for t in found)}",
        )
    if not found:
        names = [".".join(t.identifier) for t in record.tables]
        raise NotFoundError(f"backup '{record.name}' has no table '{name}'", hint=offer_tables(name, names))
    return found


def offer_tables(name: str, names: Sequence[str]) -> str:
    """Returns the hint for a table that does not exist: the most similar name, or some of the names."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5) or names
    return near[0] if len(near) == 1 else ", ".join(near[:5])


def has_table(record: BackupRecord, name: str) -> bool:
    """Returns whether a backup has a table of this name."""
    try:
        return bool(find_tables(record, name))
    except NotFoundError:
        return False
    except UsageError:  # of several catalogs
        return True


def choose_target_name(table: BackedUpTable, to: str | None = None, namespace: str | None = None) -> str:
    """Returns the name to restore a table under: `to`, or its own, in the other namespace where one is given.

    Raises:
        UsageError: `to` and `namespace` contradict each other.
    """
    space = namespace or ".".join(table.identifier[:-1])
    if to is None:
        return f"{space}.{table.identifier[-1]}"
    if "." not in to:
        return f"{space}.{to}"
    if namespace is not None and to.rpartition(".")[0] != namespace:
        raise UsageError(f"the target is '{to}' and its namespace '{namespace}'", hint="name the namespace once")
    return to


def find_catalog(settings: Settings, name: str | None, kind: str | None = None) -> CatalogSettings:
    """Returns the catalog to restore to: by name, by kind, or the one of the settings.

    Raises:
        NotFoundError: none has this name, or this kind.
        UsageError: the named catalog is of another kind, or several have this kind.
    """
    chosen = settings.catalog(name)
    if kind is None or chosen.kind == kind:
        return chosen
    if name is not None:
        raise UsageError(f"catalog '{name}' is of kind {chosen.kind}, not {kind}", hint=f"--catalog-type {chosen.kind}")
    found = [one for one in map(settings.catalog, settings.catalog_names()) if one.kind == kind]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(one.name for one in found)
        raise UsageError(f"several catalogs are of kind {kind}: {names}", hint=f"--target-catalog {found[0].name}")
    example = {
        "hive": "HIVE_METASTORE_URI=thrift://host:9083, or --set catalog.uri=thrift://host:9083",
        "rest": "--set catalog.uri=http://host:8181",
        "glue": "--set catalog.uri=glue",
    }
    raise NotFoundError(f"the settings have no catalog of kind {kind}", hint=example.get(kind, "frazil config show"))
