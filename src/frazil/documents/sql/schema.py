"""The tables of a document store, for SQLite, MySQL/MariaDB and PostgreSQL.

`documents` has the documents that exist, `document_history` every revision of every document, deletes included. Texts
compare by code point on every database, times are microseconds since 1970 in UTC.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Dialect, Index, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeDecorator, TypeEngine

from frazil.documents.model import FIELD_NAMES

#: `valid_to` of the latest revision of a document.
FOREVER = 2**63 - 1


class _Utf8(TypeDecorator[str]):
    """Text in a binary column of MySQL, whose text collations ignore trailing spaces and differ between versions."""

    impl = LargeBinary
    cache_ok = True

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(mysql.VARBINARY(self.length) if self.length else mysql.MEDIUMBLOB())

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return value.encode() if isinstance(value, str) else value

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return bytes(value).decode() if value is not None else None


def short_text(length: int) -> TypeEngine[str]:
    """A text of at most so many UTF-8 bytes, which can be compared and ordered."""
    made = String(length).with_variant(String(length, collation="C"), "postgresql")
    return made.with_variant(_Utf8(length), "mysql", "mariadb")


def long_text() -> TypeEngine[str]:
    """A text that is searched, not compared."""
    return Text().with_variant(_Utf8(), "mysql", "mariadb")


def json_text() -> TypeEngine[str]:
    return Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")


metadata = MetaData()


def _record() -> list[Column[Any]]:
    """The fields of the model in their order, then what the store adds to them."""
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
        Column("revision", BigInteger, nullable=False),
        Column("columns", json_text()),
        Column("operation", short_text(16), nullable=False),
        Column("valid_from", BigInteger, nullable=False),
        Column("search_text", long_text(), nullable=False),
    ]


documents = Table(
    "documents",
    metadata,
    *_record(),
    Index("documents_by_creation", "created_at", "document_id"),
    Index("documents_by_tier", "storage_tier", "created_at", "document_id"),
    Index("documents_by_name", "filename", "document_id"),
    Index("documents_by_object", "object_key"),  # object events find their documents by it
    mysql_engine="InnoDB",
)

_history = _record()
_history[FIELD_NAMES.index("revision")] = Column(
    "revision", BigInteger, nullable=False, primary_key=True, autoincrement=False
)
document_history = Table(
    "document_history",
    metadata,
    *_history,
    Column("valid_to", BigInteger, nullable=False),
    Column("idempotency_key", short_text(255)),
    Column("digest", short_text(64)),
    mysql_engine="InnoDB",
)
# With `valid_from`, so that what is newer than a moment is passed over without a look at the rows.
Index(
    "history_by_creation",
    document_history.c.created_at,
    document_history.c.document_id,
    document_history.c.valid_from,
)
Index(
    "history_by_key",
    document_history.c.idempotency_key,
    unique=True,
    sqlite_where=document_history.c.idempotency_key.is_not(None),
    postgresql_where=document_history.c.idempotency_key.is_not(None),
)

#: How many documents there are of each kind, and their size: kept by every write, so that statistics read few rows.
document_counts = Table(
    "document_counts",
    metadata,
    Column("provider", short_text(63), primary_key=True),  # '': none
    Column("storage_tier", short_text(16), primary_key=True),
    Column("restore_status", short_text(16), primary_key=True),
    Column("documents", BigInteger, nullable=False),
    Column("bytes", short_text(40), nullable=False),  # decimal: the sum may exceed 64 bits
    mysql_engine="InnoDB",
)

document_columns = Table(
    "document_columns",
    metadata,
    Column("name", short_text(63), primary_key=True),
    Column("type", short_text(16), nullable=False),
    mysql_engine="InnoDB",
)

store_state = Table(
    "store_state",
    metadata,
    Column("name", short_text(64), primary_key=True),
    Column("value", long_text(), nullable=False),
    mysql_engine="InnoDB",
)

#: Columns that a revision is made of, in the order of `Document` and then `Revision`.
REVISION_COLUMNS = (*FIELD_NAMES, "columns", "operation", "valid_from")
