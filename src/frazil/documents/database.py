"""The store of documents in Iceberg for programs that only want a database."""

from __future__ import annotations

import atexit
import threading

from frazil.documents.iceberg.projection import ProjectionFolder
from frazil.documents.iceberg.store import IcebergDocumentStore, open_iceberg_store
from frazil.documents.tables import ensure_history, ensure_metadata
from frazil.errors import UnavailableError
from frazil.observe.logs import get_logger
from frazil.settings import Settings, SettingsModel, environment, load_settings
from frazil.settings.permissions import make_private
from frazil.tables.store import LazyStore

_lock = threading.Lock()
#: The store of this process, and the settings that it was opened with.
_opened: tuple[SettingsModel, IcebergDocumentStore] | None = None

log = get_logger(__name__)


def open_shared_store() -> IcebergDocumentStore:
    """Does what `frazil.documents.get_iceberg_db` says."""
    global _opened
    settings = load_settings()
    with _lock:
        if _opened is not None and _opened[0] == settings.model:
            return _opened[1]
        if settings.model.home == environment.default_home():
            make_private(settings.model.home)
        _create_tables(settings)
        store = open_iceberg_store(settings)
        atexit.register(store.close)
        _opened = settings.model, store
        return store


def _create_tables(settings: Settings) -> None:
    """Where the store was used before, a catalog that is away for a while keeps nobody from it."""
    try:
        with LazyStore(settings) as tables:
            ensure_history(tables.store(), settings)
            ensure_metadata(tables.store(), settings)
    except UnavailableError as error:
        if ProjectionFolder(settings.model.home / "documents").identity() is None:
            raise
        log.warning("the tables of documents cannot be checked now", error=error.in_one_line)
