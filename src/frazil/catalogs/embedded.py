"""The embedded catalog: PyIceberg's, without what makes its commits slow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session


class EmbeddedCatalog(SqlCatalog):
    """Commits on the metadata that the caller holds, if the catalog still points to it.

    PyIceberg reads and parses the metadata file again for each commit, and copies all of it deeply; both grow with the
    snapshots that a table keeps. Where the pointer has moved on, PyIceberg's own way is taken.
    """

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        base, location = table.metadata, table.metadata_location
        if not location or self.pointer(table.name()) != location:
            return super().commit_table(table, requirements, updates)
        for requirement in requirements:
            requirement.validate(base)
        metadata = _updated(base, updates, location)
        if metadata is base:
            return CommitTableResponse(metadata=base, metadata_location=location)
        version = self._parse_metadata_version(location) + 1
        provider = load_location_provider(metadata.location, metadata.properties)
        target = provider.new_table_metadata_file_location(version)
        self._write_metadata(metadata, self._load_file_io(metadata.properties, target), target)
        self.move_pointer(table.name(), location, target)
        return CommitTableResponse(metadata=metadata, metadata_location=target)

    def pointer(self, identifier: tuple[str, ...]) -> str | None:
        """Returns the metadata file of a table, readable or not; None if the catalog has no such table."""
        found = select(IcebergTables.metadata_location).where(*self._row(identifier))  # type: ignore[arg-type]
        if (tables_only := self._iceberg_type_filter()) is not None:
            found = found.where(tables_only)
        with Session(self.engine) as session:
            location: str | None = session.scalar(found)
            return location

    def insert_pointer(self, identifier: tuple[str, ...], location: str, metadata: Mapping[str, Any]) -> None:
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
        row = self._create_table_row(namespace, Catalog.table_name_from(identifier), location)
        with Session(self.engine) as session:
            try:
                session.execute(insert(IcebergTables).values(**row))
                session.commit()
            except IntegrityError as error:
                raise TableAlreadyExistsError(f"{'.'.join(identifier)} already exists") from error

    def move_pointer(
        self, identifier: tuple[str, ...], expected: str, location: str, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Compares and sets the pointer: one row, or another writer was faster."""
        moved = (
            update(IcebergTables)
            .where(*self._row(identifier), IcebergTables.metadata_location == expected)  # type: ignore[arg-type]
            .values(metadata_location=location, previous_metadata_location=expected)
        )
        with Session(self.engine) as session:
            if session.execute(moved).rowcount < 1:  # type: ignore[attr-defined]
                raise CommitFailedException(f"Table has been updated by another process: {'.'.join(identifier)}")
            session.commit()

    def _row(self, identifier: tuple[str, ...]) -> tuple[object, ...]:
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
        return (
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == Catalog.table_name_from(identifier),
        )


def _updated(base: TableMetadata, updates: tuple[TableUpdate, ...], location: str) -> TableMetadata:
    """As PyIceberg's `update_table_metadata`, without its deep copy: each update makes a new object anyway."""
    context = _TableMetadataUpdateContext()
    metadata = base
    for change in updates:
        metadata = _apply_table_update(change, metadata, context)
    if not context.has_changes():
        return base
    metadata = _update_table_metadata_log(metadata, location, base.last_updated_ms)
    if metadata.last_updated_ms == base.last_updated_ms:
        metadata = metadata.model_copy(update={"last_updated_ms": max(_now_ms(), base.last_updated_ms + 1)})
    metadata.spec().check_compatible(metadata.schema())
    metadata.sort_order().check_compatible(metadata.schema())
    return metadata


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
