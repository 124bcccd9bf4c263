"""Prepares metadata as a restore does: a table's own, under a new place, written next to the table's."""

from __future__ import annotations

import json
import uuid
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.catalogs import read_metadata

Json = dict[str, Any]


def metadata_of(catalog: Catalog, table: str | Table) -> Json:
    identifier = tuple(table.split(".")) if isinstance(table, str) else table.name()
    found = read_metadata(catalog, identifier)
    assert found is not None
    return found[1]


def prepare(catalog: Catalog, metadata: Json, **changes: object) -> tuple[str, Json]:
    """Writes metadata with changes to a file of its own, and returns its location with the metadata."""
    prepared = {**metadata, **{key.replace("_", "-"): value for key, value in changes.items()}}
    location = f"{prepared['location']}/metadata/prepared-{uuid.uuid4().hex}.metadata.json"
    with catalog._load_file_io({}, location).new_output(location).create() as stream:
        stream.write(json.dumps(prepared).encode())
    return location, prepared


def renamed_lists(catalog: Catalog, metadata: Json) -> Json:
    """Metadata whose snapshots have other manifest lists with the same content, as after a relocation."""
    io = catalog._load_file_io({}, metadata["location"])
    snapshots = []
    for snapshot in metadata["snapshots"]:
        target = f"{metadata['location']}/metadata/list-{uuid.uuid4().hex}.avro"
        with io.new_input(snapshot["manifest-list"]).open() as source, io.new_output(target).create() as stream:
            stream.write(source.read())
        snapshots.append({**snapshot, "manifest-list": target})
    return {**metadata, "snapshots": snapshots}
