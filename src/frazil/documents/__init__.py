"""Metadata of the documents of an archive: the record and its life cycle, the stores, history, migration."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frazil.documents.iceberg.store import IcebergDocumentStore

__all__ = ["get_iceberg_db"]


def get_iceberg_db() -> IcebergDocumentStore:
    """Returns the store of documents in Iceberg, as environment and settings files describe it.

    The first call of a process creates the tables `document_metadata` and `document_history` where they do not exist.
    All calls return the same store, unless the settings have changed meanwhile. It may be used by any number of
    threads, needs no closing, and can be used again after it was closed.

    Raises:
        ConfigError: a setting is wrong.
        UnavailableError: the catalog does not answer, and this machine has never used the store.
    """
    from frazil.documents.database import open_shared_store

    return open_shared_store()
