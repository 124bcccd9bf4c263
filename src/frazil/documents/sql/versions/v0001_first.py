"""The first schema: documents, their history, counts, added columns, and the state of the store."""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Index, MetaData, Table, inspect
from sqlalchemy.schema import CreateTable

from frazil.documents.sql.schema import json_text, long_text, short_text

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Creates what is missing: MySQL has no transactions for this, and may have been interrupted."""
    bind = op.get_bind()
    there = inspect(bind)
    for table in _tables():
        if not there.has_table(table.name):
            op.execute(CreateTable(table))
        present = {index["name"] for index in inspect(bind).get_indexes(table.name)}
        for index in table.indexes:
            if index.name not in present:
                index.create(bind)


def _tables() -> list[Table]:
    metadata = MetaData()
    engine: dict[str, Any] = {"mysql_engine": "InnoDB"}
    history = Table(
        "document_history",
        metadata,
        *_record(in_history=True),
        Column("valid_to", BigInteger, nullable=False),
        Column("idempotency_key", short_text(255)),
        Column("digest", short_text(64)),
        **engine,
    )
    Index("history_by_creation", history.c.created_at, history.c.document_id, history.c.valid_from)
    has_key = history.c.idempotency_key.is_not(None)
    Index("history_by_key", history.c.idempotency_key, unique=True, sqlite_where=has_key, postgresql_where=has_key)
    return [
        Table(
            "store_state",
            metadata,
            Column("name", short_text(64), primary_key=True),
            Column("value", long_text(), nullable=False),
            **engine,
        ),
        Table(
            "documents",
            metadata,
            *_record(in_history=False),
            Index("documents_by_creation", "created_at", "document_id"),
            Index("documents_by_tier", "storage_tier", "created_at", "document_id"),
            Index("documents_by_name", "filename", "document_id"),
            Index("documents_by_object", "object_key"),
            **engine,
        ),
        history,
        Table(
            "document_counts",
            metadata,
            Column("provider", short_text(63), primary_key=True),
            Column("storage_tier", short_text(16), primary_key=True),
            Column("restore_status", short_text(16), primary_key=True),
            Column("documents", BigInteger, nullable=False),
            Column("bytes", short_text(40), nullable=False),
            **engine,
        ),
        Table(
            "document_columns",
            metadata,
            Column("name", short_text(63), primary_key=True),
            Column("type", short_text(16), nullable=False),
            **engine,
        ),
    ]


def _record(*, in_history: bool) -> list[Column[Any]]:
    return [
        Column("document_id", short_text(255), nullable=False, primary_key=True),
        Column("filename", short_text(1024), nullable=False),
        Column("content_type", short_text(512)),
        Column("size_bytes", BigInteger),
        Column("checksum", short_text(300)),
        Column("provider", short_text(63)),
        Column("bucket", short_text(1024)),
        Column("object_key", short_text(1024)),
        Column("version_id", short_text(1024)),
        Column("storage_tier", short_text(16), nullable=False),
        Column("restore_status", short_text(16), nullable=False),
        Column("restore_requested_at", BigInteger),
        Column("restore_expiry", BigInteger),
        Column("created_at", BigInteger, nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        Column("tags", json_text(), nullable=False),
        Column("attributes", json_text(), nullable=False),
        Column("revision", BigInteger, nullable=False, primary_key=in_history, autoincrement=False),
        Column("columns", json_text()),
        Column("operation", short_text(16), nullable=False),
        Column("valid_from", BigInteger, nullable=False),
        Column("search_text", long_text(), nullable=False),
    ]
