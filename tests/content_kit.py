"""The tables of content for tests of readers: rows made by hand, written by PyIceberg, no Spark and no log."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from frazil.catalogs import open_catalog
from frazil.content.columns import JOURNAL, OBJECTS
from frazil.content.tables import ContentTables, ensure_journal, ensure_objects
from frazil.settings import Settings, load_settings
from frazil.tables import TableStore

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def an_object(key: str, **more: Any) -> dict[str, Any]:
    """A row of `content.objects`: the latest version of an object of ten bytes, in a bucket without versions."""
    row: dict[str, Any] = dict.fromkeys(OBJECTS.names)
    row |= {"bucket": "photos", "key": key, "version_id": "", "size": 10, "etag": f"etag-{key}", "sequencer": "0A"}
    row |= {"is_latest": True, "is_deleted": False, "is_delete_marker": False, "dialect": "aws"}
    row |= {"last_modified": NOON, "changed_at": NOON, "storage_class": "STANDARD"}
    told = "deleted" if more.get("is_deleted") else "created"
    row["frazil_order"] = {told: f"0A/{0:016}", f"{told}_time": NOON}
    return row | more


def a_change(key: str, sequence: str, record_type: str = "CREATE", **more: Any) -> dict[str, Any]:
    """A row of `content.journal`."""
    row: dict[str, Any] = dict.fromkeys(JOURNAL.names)
    row |= {"bucket": "photos", "key": key, "sequence_number": sequence, "record_type": record_type, "dialect": "aws"}
    row |= {"record_timestamp": NOON.replace(tzinfo=None), "topic": "content_events", "partition": 0}
    return row | {"is_delete_marker": False, "offset": 0, "index": 0} | more


class Content:
    """Both tables in a catalog, the embedded one of a home folder by default."""

    def __init__(self, settings: Settings, catalog: str | None = None) -> None:
        self.settings = settings
        chosen = settings.catalog(catalog)
        self.store = TableStore(open_catalog(chosen, settings.model.network), chosen)
        self.tables = ContentTables.of(self.store, settings)

    @classmethod
    def at(cls, home: Path, **content: Any) -> Content:
        flags = {"home": str(home), "log.min_free": "0"} | {f"content.{name}": str(v) for name, v in content.items()}
        return cls(load_settings(flags=flags, environ={}))

    def add_objects(self, rows: Iterable[dict[str, Any]]) -> None:
        """One file."""
        ensure_objects(self.store, self.settings).append(pa.Table.from_pylist(list(rows), schema=OBJECTS))

    def add_changes(self, rows: Iterable[dict[str, Any]]) -> None:
        listed = [row | {"offset": row["offset"] or number} for number, row in enumerate(rows)]
        ensure_journal(self.store, self.settings).append(pa.Table.from_pylist(listed, schema=JOURNAL))
