"""Deletes topics, with their tables if that is safe for other tables."""

from __future__ import annotations

import difflib
import threading
from dataclasses import dataclass
from typing import Any, NoReturn

from frazil.errors import IntegrityError, NotFoundError
from frazil.log.protocol import LogAccess, TopicInfo
from frazil.settings import Settings
from frazil.tables.metadata.locations import filter_own_files
from frazil.tables.metadata.reachable import find_reachable_files
from frazil.tables.store import LazyStore
from frazil.topics.storage import IcebergStorage, require_all_in_table
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry.shared_locations import require_sole_owner


@dataclass(frozen=True)
class TopicDeletionPlan:
    """What the deletion of a topic removes.

    Attributes:
        info: the topic.
        with_table: whether its table is deleted too.
        left: which files of the table stay, and why; None: none.
    """

    info: TopicInfo
    with_table: bool
    left: str | None

    def to_dict(self) -> dict[str, Any]:
        info = self.info
        return {
            "topic": info.name,
            "storage": info.storage,
            "log": f"delete offsets {info.start} to {info.end}, {info.size:,} bytes",
            "table": self._table(),
        }

    def _table(self) -> str:
        if self.left is not None:
            return f"drop; {self.left}"
        if self.info.storage == "log":
            return "none: the topic has only its log"
        return "delete, with all its files" if self.with_table else "keep; a new topic of that name has to adopt it"


def plan_topic_deletion(
    access: LogAccess,
    settings: Settings,
    store: LazyStore,
    topic: str,
    *,
    with_table: bool = False,
    force: bool = False,
) -> TopicDeletionPlan:
    """Checks what a deletion would remove. Changes nothing.

    Args:
        access: the log.
        settings: the settings.
        store: the catalog with the topic's table.
        topic: its name.
        with_table: delete its table too, with all files.
        force: also if messages are not in the table yet, or the topic cannot be opened.

    Raises:
        NotFoundError: there is no such topic.
        ConflictError: messages are not in the table yet.
        IntegrityError: the topic cannot be opened.
        SharedLocationError: another table is the topic's table, or refers to its files.
    """
    topics = access.topics()
    info = next((i for i in topics if i.name == topic), None)
    if info is None:
        close = difflib.get_close_matches(topic, [i.name for i in topics], n=1)
        hint = f"frazil topic delete {close[0]}" if close else "frazil topic list"
        raise NotFoundError(f"topic '{topic}' does not exist in the {access.where}", hint=hint)
    storage = IcebergStorage(access, topic, settings, store) if info.storage == "iceberg" else None
    if not force:
        _require_deletable(info, None if with_table else storage)
    left = _require_table_free(settings, storage) if with_table and storage is not None else None
    return TopicDeletionPlan(info, with_table, left)


def delete_topic(access: LogAccess, settings: Settings, store: LazyStore, plan: TopicDeletionPlan) -> None:
    """Deletes what a plan says."""
    if plan.with_table and plan.info.storage == "iceberg":
        IcebergStorage(access, plan.info.name, settings, store).delete(purge=plan.left is None)
    else:
        access.delete_topic(plan.info.name)


def _require_deletable(info: TopicInfo, kept_table: IcebergStorage | None) -> None:
    if info.problem is not None:
        raise IntegrityError(
            f"topic '{info.name}' cannot be opened, so its contents are unknown",
            cause=info.problem,
            hint=f"frazil topic verify {info.name}, or --force",
        )
    if kept_table is not None:
        require_all_in_table(kept_table)


def _require_table_free(settings: Settings, storage: IcebergStorage) -> str | None:
    """Requires that no other table is, or refers to, this one, because purging a table deletes all its files.

    Returns:
        Which files are left behind and why: the manifests cannot be read, so that nobody can check the files; or some
        of them may belong to others.
    """
    store = storage.store
    found = storage.find_table()
    if found is None:
        return None
    left = f"its files are left in {found.location()}"
    if found.metadata.properties.get("gc.enabled", "true").lower() == "false":
        return f"{left}, because its property gc.enabled is false"
    try:
        files = find_reachable_files(store, found)
    except (IntegrityError, NotFoundError) as error:
        return f"{left}, because they cannot be checked: {error.message}"
    if elsewhere := files.keys() - filter_own_files(found, files):
        return f"{left}, because it refers to files elsewhere, such as {files[min(elsewhere)].uri}"

    def no_spark() -> NoReturn:
        raise AssertionError("checking other tables needs no Spark")

    require_sole_owner(UpkeepContext(settings, store.settings, store, no_spark, threading.Event()), found, files)
    return None
