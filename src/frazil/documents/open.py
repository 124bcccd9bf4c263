"""Opens the document store that the settings choose."""

from __future__ import annotations

from typing import cast

from frazil.documents.store import DocumentStore
from frazil.settings import Settings


def open_store(settings: Settings, url: str | None = None) -> DocumentStore:
    """Opens a store of documents. Its tables are created or brought up to date.

    Args:
        settings: they name the store by `database.url`; without one it is `documents.db` in `home`.
        url: another store than that of the settings.

    Raises:
        ConfigError: the URL is none of a store.
        UnavailableError: its server cannot be reached.
    """
    chosen = store_url(settings, url)
    if chosen == "iceberg":
        from frazil.documents.iceberg.store import open_iceberg_store

        return cast("DocumentStore", open_iceberg_store(settings))
    from frazil.documents.sql.store import SqlDocumentStore

    return SqlDocumentStore(chosen)


def store_url(settings: Settings, url: str | None = None) -> str:
    """Returns the URL of the store that `open_store` opens: `iceberg`, or one of a database."""
    chosen = (url or settings.model.database.url or "").strip()
    if chosen in ("iceberg", "iceberg://"):
        return "iceberg"
    return chosen if chosen and chosen != "sqlite" else f"sqlite:///{settings.model.home / 'documents.db'}"
