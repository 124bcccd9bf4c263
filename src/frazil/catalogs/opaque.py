"""Loads tables whose schema PyIceberg cannot read, without their schema: where they lie, and which files they have.

A table of format 3 may have types and defaults that PyIceberg does not know. Nothing can be read of its rows then, but
its location, snapshots and manifests are plain.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

from frazil.catalogs.failures import translated
from frazil.errors import UnsupportedError
from frazil.settings import CatalogSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

Identifier = tuple[str, ...]


def load_without_schema(catalog: Catalog, settings: CatalogSettings, identifier: Identifier) -> Table:
    """A table whose schemas, partitions and sort orders are empty. Only for looking at its places and files.

    Raises:
        UnsupportedError: this kind of catalog does not show a table's metadata as it is.
        FrazilError: catalog or storage fail, or this is no metadata.
    """
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadataUtil

    with translated(settings):
        location, found = _raw(catalog, identifier)
        try:
            metadata = TableMetadataUtil.parse_obj(_stripped(found))
        except (ValueError, KeyError, TypeError) as error:
            raise UnsupportedError(
                f"the metadata of {'.'.join(identifier)} cannot be read: {location}",
                cause=str(error).partition("\n")[0],
                hint=f"drop the table {'.'.join(identifier)}, or restore its metadata",
            ) from error
        io = catalog._load_file_io(metadata.properties, location)
    return Table(identifier, metadata, location, io, catalog)


def _raw(catalog: Catalog, identifier: Identifier) -> tuple[str, dict[str, Any]]:
    from pyiceberg.catalog.rest import Endpoints, RestCatalog

    if isinstance(catalog, RestCatalog):
        path = catalog.url(Endpoints.load_table, prefixed=True, **catalog._split_identifier_for_path(identifier))
        response = catalog._session.get(path)
        response.raise_for_status()
        told = response.json()
        return str(told["metadata-location"]), dict(told["metadata"])
    location = _pointer(catalog, identifier)
    with catalog._load_file_io({}, location).new_input(location).open() as stream:
        data = stream.read()
    found = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    if not isinstance(found, dict):
        raise UnsupportedError(f"{location} is no table metadata", hint=f"drop the table {'.'.join(identifier)}")
    return location, found


def _pointer(catalog: Catalog, identifier: Identifier) -> str:
    """The metadata file that a catalog names for a table."""
    from frazil.catalogs.embedded import EmbeddedCatalog

    kinds = {kind.__name__ for kind in type(catalog).__mro__}
    found: Any = None
    if isinstance(catalog, EmbeddedCatalog):
        found = catalog.pointer(identifier)
    elif "HiveCatalog" in kinds:
        hive: Any = catalog
        with hive._client as client:
            found = hive._get_hive_table(client, *identifier).parameters.get("metadata_location")
    elif "GlueCatalog" in kinds:
        glue: Any = catalog
        found = glue._get_glue_table(*identifier).get("Parameters", {}).get("metadata_location")
    if not found:
        raise UnsupportedError(
            f"the catalog does not say where the metadata of {'.'.join(identifier)} lies", hint="drop the table"
        )
    return str(found)


def _stripped(found: dict[str, Any]) -> dict[str, Any]:
    """Metadata without what PyIceberg may not know: columns, and partitions and orders by them."""
    schemas = found.get("schemas") or [found.get("schema") or {}]
    specs = found.get("partition-specs") or [{"spec-id": 0}]
    orders = found.get("sort-orders") or [{"order-id": 0}]
    kept = {key: value for key, value in found.items() if key not in ("schema", "partition-spec")}
    return kept | {
        "schemas": [{"type": "struct", "schema-id": s.get("schema-id", 0), "fields": []} for s in schemas],
        "partition-specs": [{"spec-id": s["spec-id"], "fields": []} for s in specs],
        "sort-orders": [{"order-id": o["order-id"], "fields": []} for o in orders],
        "current-schema-id": found.get("current-schema-id", 0),
        "default-spec-id": found.get("default-spec-id", 0),
        "last-partition-id": found.get("last-partition-id", 999),
        "format-version": max(2, int(found.get("format-version", 2))),
        "last-sequence-number": found.get("last-sequence-number", 0),
    }
