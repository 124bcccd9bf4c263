"""Describes a topic: log, table, sinks with their lag, columns, subscriptions."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from frazil.log.columns import PARTITION
from frazil.log.protocol import LogAccess, TopicInfo
from frazil.settings import Settings
from frazil.tables.store import LazyStore, find_table
from frazil.topics.layout import ARCHIVE, table_name
from frazil.topics.sinks.registry import sink_tables

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables import Position


def describe_topic(access: LogAccess, settings: Settings, topic: str, store: LazyStore) -> dict[str, Any]:
    """Returns everything about a topic in JSON-compatible types."""
    info = access.info(topic)
    table = find_table(store.store(), table_name(settings, topic)) if info.storage == "iceberg" else None
    in_table = _table(table, topic) if table is not None else None
    # The log knows offsets only from a running pipeline.
    sinks = {**info.sinks, **_committed(store, settings, info, table)}
    return {
        "topic": topic,
        "storage": info.storage,
        "log": _log(access, info),
        "table": in_table,
        "sinks": [
            {"sink": name, "offset": offset, "lag": None if offset is None else max(0, info.end - offset)}
            for name, offset in sinks.items()
        ],
        "columns": [{"column": f.name, "type": str(f.type)} for f in info.extra],
        "subscriptions": [
            {"subscription": name, "offset": offset, "lag": max(0, info.end - offset)}
            for name, offset in sorted(info.subscriptions.items())
        ],
    }


def _committed(store: LazyStore, settings: Settings, info: TopicInfo, archive: Table | None) -> dict[str, int]:
    """Returns the offsets up to which sinks have committed messages of this log, as their tables say."""
    found = {}
    # Of the tables of one sink, the last is committed last.
    for sink, name in dict(sink_tables(settings, info.name)).items():
        table = archive
        if sink != ARCHIVE:
            table = find_table(store.store(), name) if sink in info.sinks else None
        position = _position(table, sink, info.name)[0] if table is not None else None
        if position is not None and position.log_id == info.log_id:
            found[sink] = position.offsets.get(PARTITION, 0)
    return found


def _log(access: LogAccess, info: TopicInfo) -> dict[str, Any]:
    return {
        "log": access.where,
        "log_id": info.log_id,
        "epoch": info.epoch,
        "sync_mode": info.sync_mode,
        "created_at": info.created_at,
        "start": info.start,
        "end": info.end,
        "written": info.written,
        "first_time": _time(info.first_time_us),
        "last_time": _time(info.last_time_us),
        "segments": info.segments,
        "size": info.size,
        "retention_age_s": info.retention_age_s,
        "retention_bytes": info.retention_bytes,
        "refuses": info.refuses,
    }


def _time(time_us: int | None) -> str | None:
    if time_us is None:
        return None
    return datetime.datetime.fromtimestamp(time_us / 1e6, datetime.UTC).isoformat(timespec="milliseconds")


def _table(table: Table, topic: str) -> dict[str, Any]:
    position, problem = _position(table, ARCHIVE, topic)
    snapshot = table.current_snapshot()
    summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    described = {
        "table": ".".join(table.name()),
        "position": position.offsets.get(PARTITION, 0) if position is not None else 0,
        "log_id": position.log_id if position is not None else None,
        "rows": int(summary.get("total-records", 0)),
        "files": int(summary.get("total-data-files", 0)),
        "size": int(summary.get("total-files-size", 0)),
        "snapshots": len(table.metadata.snapshots),
    }
    return described if problem is None else {**described, "problem": problem}


def _position(table: Table, sink: str, topic: str) -> tuple[Position | None, str | None]:
    """Returns where a sink's table is, and what is wrong with that."""
    from frazil.tables import RolledBackError, find_position

    try:
        return find_position(table, sink, topic), None
    except RolledBackError as error:
        return error.table_position, error.message
