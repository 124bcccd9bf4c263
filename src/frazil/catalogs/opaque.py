"""Loads tables whose schema PyIceberg cannot read, without their schema: where they lie, and which files they have.

A table of format 3 may have types and defaults that PyIceberg does not know. Nothing can be read of its rows then, but
its location, snapshots and manifests are plain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frazil.catalogs.failures import translated
from frazil.catalogs.pointers import read_metadata
from frazil.errors import UnsupportedError
from frazil.settings import CatalogSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

Identifier = tuple[str, ...]


def load_without_schema(
    catalog: Catalog, settings: CatalogSettings, identifier: Identifier, *, inline_manifests: bool = False
) -> Table:
    """Loads a table without schemas, partitions and sort orders, for access to its locations and files only.

    Args:
        catalog: that has the table.
        settings: of the catalog.
        identifier: of the table.
        inline_manifests: accept snapshots of format version 1 that list their manifests in place of a manifest list;
            for callers that do not read manifests through the table.

    Raises:
        NotFoundError: there is no such table.
        UnsupportedError: this kind of catalog does not show a table's metadata as it is.
        FrazilError: catalog or storage fail, or this is no metadata.
    """
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadataUtil

    with translated(settings):
        raw = read_metadata(catalog, identifier)
        if raw is None:
            raise NoSuchTableError(f"Table does not exist: {'.'.join(identifier)}")
        location, found = raw
        try:
            metadata = TableMetadataUtil.parse_obj(_stripped(found, inline_manifests=inline_manifests))
        except (ValueError, KeyError, TypeError) as error:
            raise UnsupportedError(
                f"cannot read the metadata of {'.'.join(identifier)}: {location}",
                cause=str(error).partition("\n")[0],
                hint=f"drop the table {'.'.join(identifier)}, or restore its metadata",
            ) from error
        io = catalog._load_file_io(metadata.properties, location)
    return Table(identifier, metadata, location, io, catalog)


def _stripped(found: dict[str, Any], *, inline_manifests: bool = False) -> dict[str, Any]:
    """Removes from metadata what PyIceberg may not know: columns, and partitions and orders by them."""
    schemas = found.get("schemas") or [found.get("schema") or {}]
    specs = found.get("partition-specs") or [{"spec-id": 0}]
    orders = found.get("sort-orders") or [{"order-id": 0}]
    kept = {key: value for key, value in found.items() if key not in ("schema", "partition-spec")}
    if inline_manifests and found.get("snapshots"):
        kept["snapshots"] = [{"manifest-list": "", **snapshot} for snapshot in found["snapshots"]]
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
