"""Tables that are there when they are needed."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import SortOrder

from frazil.catalogs import flavor_of, parse_name
from frazil.errors import UnsupportedError
from frazil.observe.faultpoints import reach
from frazil.tables.commit_draft import build_draft
from frazil.tables.layout import parse_partition_spec, parse_sort_order
from frazil.tables.manifest_writer import ManifestWriter
from frazil.tables.schema_evolution import require_readable
from frazil.tables.store import TableStore, back_off

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

#: Old metadata.json files cost disk and, as entries of the newest one, time in each commit.
DEFAULT_PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


_PATIENCE = 12


#: Held while a table is created: the sinks of a pipeline all create the dead letters. The loser of a race would leave a
#: metadata file in the folder of the winner's table, which a replica takes for a second table.
_creating = threading.Lock()


def ensure_table(
    store: TableStore,
    name: str | tuple[str, ...],
    schema: Schema | pa.Schema,
    *,
    partition: PartitionSpec | Sequence[str] = (),
    sort: SortOrder | Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    location: str | None = None,
) -> Table:
    """Loads a table; creates it, and its namespace, if it does not exist. Safe for concurrent callers.

    Args:
        store: where.
        name: `namespace.table`.
        schema: columns of a new table. One that exists keeps its own: see `evolve`.
        partition: of a new table, as a spec or as terms like `day(publish_time)`.
        sort: of a new table, as an order or as terms like `offset`.
        properties: of a new table, above our defaults.
        location: of a new table; by default the catalog chooses it.

    Raises:
        UnsupportedError: it exists in a format that cannot be written here.
    """
    identifier = parse_name(name if isinstance(name, str) else ".".join(name), store.settings.name)
    table = store.call(lambda: _load(store, identifier), "load")
    if table is None:
        columns = assign_field_ids(schema)
        spec = partition if isinstance(partition, PartitionSpec) else parse_partition_spec(columns, partition)
        order = sort if isinstance(sort, SortOrder) else parse_sort_order(columns, sort)
        require_readable(columns, [spec])
        wanted = {**DEFAULT_PROPERTIES, **(properties or {})}
        reach("tables.create.before")
        with _creating:
            table = store.call(lambda: _load(store, identifier), "load") or store.call(
                lambda: _create(store, identifier, columns, spec, order, wanted, location), "create"
            )
        reach("tables.create.after")
    require_writable(table)
    return _opened(store, table) if needs_first_snapshot(store, table) else table


def needs_first_snapshot(store: TableStore, table: Table) -> bool:
    """Whether nothing would keep two first commits apart.

    Nessie (seen in 0.10x) does not check that main is still without a snapshot, though it checks any other state of it.
    """
    return (
        table.metadata.current_snapshot_id is None
        and flavor_of(store.settings, dict(store.catalog.properties)) == "nessie"
    )


def _opened(store: TableStore, table: Table) -> Table:
    """Returns the table with its empty first snapshot: its creator adds it, other callers wait for it."""
    for attempt in range(_PATIENCE if table.metadata_location not in store.created else 0):
        back_off(attempt)
        table = store.load(table.name())
        if not needs_first_snapshot(store, table):
            return table
    draft = build_draft(table, ManifestWriter(store, table), (), Operation.APPEND)
    store.call_once(lambda: store.catalog.commit_table(table, draft.requirements, draft.updates))
    return store.load(table.name())


def require_writable(table: Table) -> None:
    version = table.metadata.format_version
    if version != 2:
        raise UnsupportedError(
            f"the table {'.'.join(table.name())} has format version {version}, but Frazil writes only version 2",
            hint="upgrade it with Spark: ALTER TABLE … SET TBLPROPERTIES ('format-version'='2')"
            if version < 2
            else "write it with Spark",
        )


def assign_field_ids(schema: Schema | pa.Schema) -> Schema:
    """Assigns the field ids 1, 2, …, as every catalog does."""
    if not isinstance(schema, Schema):
        from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, visit_pyarrow

        schema = visit_pyarrow(schema, _ConvertToIcebergWithoutIDs())
    return assign_fresh_schema_ids(schema)


def to_arrow_schema(schema: Schema) -> pa.Schema:
    """Returns the columns of a table as Arrow types, without field ids."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(schema, include_field_ids=False)


def _load(store: TableStore, identifier: tuple[str, ...]) -> Table | None:
    try:
        return store.catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def _create(
    store: TableStore,
    identifier: tuple[str, ...],
    schema: Schema,
    spec: PartitionSpec,
    order: SortOrder,
    properties: dict[str, str],
    location: str | None,
) -> Table:
    ensure_namespace(store, identifier[:-1])
    try:
        made = store.catalog.create_table(
            identifier, schema=schema, location=location, partition_spec=spec, sort_order=order, properties=properties
        )
        store.created.add(made.metadata_location)
        # Loaded, because a server may answer two who create at once with a table each, and keep one.
        return store.catalog.load_table(identifier)
    except TableAlreadyExistsError:
        return store.catalog.load_table(identifier)
    except Exception:
        # Two at once: catalogs say so in many ways, and a reply that was lost says nothing at all.
        if (found := _load(store, identifier)) is not None:
            return found
        raise


def ensure_namespace(store: TableStore, namespace: tuple[str, ...]) -> None:
    """Creates a namespace and those above it, unless they exist."""
    for depth in range(1, len(namespace) + 1):
        part = namespace[:depth]
        try:
            if not store.catalog.namespace_exists(part):
                store.catalog.create_namespace(part)
        except NamespaceAlreadyExistsError:
            continue
        except Exception:
            if not store.catalog.namespace_exists(part):
                raise
