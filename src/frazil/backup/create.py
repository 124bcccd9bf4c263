"""Creates backups: copies tables into a repository, and writes the record last.

A create that fails, is stopped or killed leaves no record, and so no backup. What it has copied stays in the repository
until a prune; the next create of the same table goes on from there.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from frazil.backup.completeness import check_marks, find_lost
from frazil.backup.create_tasks import Vanished
from frazil.backup.format import BackedUpTable, BackupRecord, BlobRef, check_name
from frazil.backup.repository import Repository
from frazil.backup.source import (
    TableSource,
    drop_expired,
    head_of,
    load_source,
    pinned_head,
    select_refs,
    snapshot_ids,
)
from frazil.backup.table_copy import TableCopy, VanishedError
from frazil.catalogs import parse_name
from frazil.errors import ConflictError, FrazilError, IntegrityError, NotFoundError, UsageError
from frazil.observe.cancellation import raise_if_stopped
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.observe.progress import Progress
from frazil.tables.metadata.locations import canonical_folder, is_inside, list_own_folders
from frazil.tables.relocation.engine import Engine, EngineChoice, open_engine
from frazil.tables.relocation.table_metadata import TableMetadata
from frazil.upkeep.context import UpkeepContext
from frazil.version import __version__

log = get_logger(__name__)

#: States of a table that are begun with: its head may be expired while it is copied, where there is no pin.
_STATES = 10
#: Files at a time where each request waits for a server.
_ON_S3 = 16
#: Times that blobs which a prune has deleted are copied again.
_CHECKS = 5


class _HeadExpiredError(Exception):
    """The head of the state that was being copied is gone."""


@dataclass(frozen=True)
class _Run:
    """What all tables of one create share."""

    care: UpkeepContext
    repository: Repository
    engine: Engine
    backup_id: str
    mode: Literal["copy", "reference"]
    ref: str | None
    progress: Progress
    stop: threading.Event


def create_backup(
    care: UpkeepContext,
    repository: Repository,
    tables: Sequence[str],
    *,
    name: str | None = None,
    ref: str | None = None,
    data: Literal["copy", "reference"] = "copy",
    engine: EngineChoice = "auto",
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> BackupRecord:
    """Backs up tables: each as it is at one moment, with its history.

    Args:
        care: the catalog of the tables.
        repository: where the backup goes.
        tables: their names.
        name: of the backup; by default the time and a few random digits.
        ref: only this branch or tag, and its history; by default all.
        data: `reference` copies metadata only: the backup needs the data files where they are.
        engine: what copies.
        progress: counters; by default they are not reported.
        stop: ends the work between two files; by default that of `care`.

    Raises:
        NotFoundError: there is no such table, branch or tag; or a file of a table is missing.
        ConflictError: a backup of this name exists; or it took longer than `backup.prune_wait_s`.
        UnsupportedError: a table is encrypted, or of a newer format version.
        IntegrityError: metadata of a table is damaged, or a file has another size than its manifest says.
        StoppedError: `stop` was set.
    """
    stop = stop or care.stop
    names = list(dict.fromkeys(".".join(parse_name(table, care.catalog.name)) for table in tables))
    if not names:
        raise UsageError("no table is given to back up", hint="frazil backup create demo.photos")
    started = repository.now()
    backup_id = uuid.uuid4().hex
    name = check_name(name or f"{started:%Y-%m-%dT%H-%M-%SZ}-{backup_id[:6]}")
    _require_free(repository, name)
    settings = care.settings
    with open_engine(
        engine,
        settings,
        size_hint=_estimate_bytes(care, names) if engine == "auto" else 0,
        concurrency=settings.model.backup.concurrency or (None if repository.is_local else _ON_S3),
        stop=stop,
        spark=care.spark,
    ) as pool:
        run = _Run(care, repository, pool, backup_id, data, ref, progress or Progress(), stop)
        found = _back_up_checked(run, names, started)
    record = BackupRecord(
        name=name,
        id=backup_id,
        started_at=started,
        created_at=repository.now(),
        frazil_version=__version__,
        data="copied" if data == "copy" else "referenced",
        locked_until=repository.lock_until,
        tables=tuple(found),
    )
    raise_if_stopped(stop)
    reach("backup.create.record.before")
    record = repository.write_record(record, prune_wait_s=settings.model.backup.prune_wait_s)
    reach("backup.create.record.after")
    for table in found:
        with suppress(FrazilError):  # the backup exists; a note that stays does no harm
            repository.clear_progress(table.uuid)
    return record


def _back_up_checked(run: _Run, names: Sequence[str], started: datetime) -> list[BackedUpTable]:
    """Backs up tables, and again what earlier backups list and the repository lacks, or a prune has deleted by then."""
    missing: frozenset[BlobRef] = frozenset()
    wait_s = run.care.settings.model.backup.prune_wait_s
    for _ in range(_CHECKS):
        found = [_back_up_table(run, name, missing) for name in names]
        run.repository.flush()
        reach("backup.create.flushed")
        lost = find_lost(run.repository, found)
        lost = lost or check_marks(run.repository, found, started, prune_wait_s=wait_s, stop=run.stop)
        raise_if_stopped(run.stop)
        if not lost:
            return found
        missing |= frozenset(lost)
        log.info("blobs that the repository lacks are copied again", count=len(lost))
    raise IntegrityError(
        f"blobs of the new backup vanished from {run.repository.root} again and again, such as {lost[0]}",
        hint="find out what else deletes objects there",
    )


def _back_up_table(run: _Run, name: str, missing: Collection[BlobRef]) -> BackedUpTable:
    with ExitStack() as opened:
        copy: TableCopy | None = None
        for _ in range(_STATES):
            raise_if_stopped(run.stop)
            source = load_source(run.care, name)
            _require_outside(run.repository, source)
            metadata = select_refs(source.metadata, run.ref)
            reach("backup.create.loaded")
            if copy is None:
                copy = TableCopy(
                    run.care, run.repository, run.engine, source.uuid, run.backup_id, run.mode, run.progress, missing
                )
                opened.enter_context(copy)
            try:
                with ExitStack() as pin:
                    return _copy_state(run, copy, source, metadata, pin)
            except _HeadExpiredError:
                log.info("the head was expired while it was copied: the table is copied as it is now", table=name)
        raise ConflictError(
            f"the snapshots of {name} expire faster than they can be copied",
            hint="keep more of them (--keep, --older-than), or back it up while no expiry runs",
        )


def _require_outside(repository: Repository, source: TableSource) -> None:
    """Refuses a repository in a folder of a table: deleting or cleaning up the table would delete its backups too."""
    root = canonical_folder(repository.root)
    for folder in list_own_folders(source.table):
        if is_inside(root, folder):
            raise UsageError(
                f"the backup repository {repository.root} lies in a folder of {source.name}: {folder}",
                cause="what deletes or cleans up the table would delete its backups",
                hint="another folder or bucket as backup.bucket",
            )


def _copy_state(
    run: _Run, copy: TableCopy, source: TableSource, metadata: TableMetadata, pin: ExitStack
) -> BackedUpTable:
    """Copies a table as it was loaded, without snapshots that are expired in the course.

    Each repetition has fewer snapshots or statistics, so that there is an end.
    """
    is_pinned = False
    while True:
        try:
            plan = copy.plan(source, metadata)
            reach("backup.create.planned")
            if not plan.is_done and not is_pinned:
                _pin(run, source, metadata, pin)
                is_pinned = True
            return copy.run(plan)
        except VanishedError as vanished:
            metadata = _without_expired(run, source, metadata, vanished)


def _pin(run: _Run, source: TableSource, metadata: TableMetadata, pin: ExitStack) -> None:
    head = head_of(metadata, run.ref)
    if head is None:
        return
    try:
        pin.enter_context(pinned_head(run.care, source, head))
    except NotFoundError as error:
        raise VanishedError(Vanished(f"snapshot {head}", error)) from error
    reach("backup.create.pinned")


def _without_expired(run: _Run, source: TableSource, metadata: TableMetadata, vanished: VanishedError) -> TableMetadata:
    """Returns the metadata without what was expired since, after a file was not there.

    Raises:
        NotFoundError: nothing was expired that would explain it.
        _HeadExpiredError: what is backed up is gone itself.
    """
    fresh = load_source(run.care, source.name)
    if fresh.uuid != source.uuid:
        raise ConflictError(
            f"the table {source.name} was replaced by another one while it was copied", hint="repeat the command"
        ) from vanished
    if head_of(metadata, run.ref) not in {None, *snapshot_ids(fresh.metadata)}:
        raise _HeadExpiredError from vanished
    rest = drop_expired(metadata, fresh.metadata)
    if rest is None:
        raise NotFoundError(
            f"the table {source.name} lacks a file that its metadata refers to: {vanished.path}",
            cause=vanished.error.in_one_line,
            hint="bring the file back, or roll the table back and expire the snapshots that need it",
        ) from vanished.error
    log.info(
        "snapshots that were expired while they were copied are left out",
        table=source.name,
        snapshots=len(snapshot_ids(metadata)) - len(snapshot_ids(rest)),
    )
    return rest


def _require_free(repository: Repository, name: str) -> None:
    if name == "latest":
        raise UsageError("no backup can be named 'latest', which stands for the newest one", hint="choose another name")
    try:
        repository.read_record(name)
    except NotFoundError:
        return
    except FrazilError as error:
        raise ConflictError(f"a backup named '{name}' exists, and is damaged", hint="choose another name") from error
    raise ConflictError(f"a backup named '{name}' exists", hint="choose another name")


def _estimate_bytes(care: UpkeepContext, names: Sequence[str]) -> int:
    """Returns the size of the tables' current snapshots, where their summaries have it; 0 without a cluster."""
    if care.settings.model.spark.master.startswith("local"):
        return 0
    return sum(_read_size(care, name) for name in names)


def _read_size(care: UpkeepContext, name: str) -> int:
    metadata = load_source(care, name).metadata
    head = head_of(metadata)
    for snapshot in metadata.get("snapshots") or ():
        if snapshot["snapshot-id"] == head:
            return int((snapshot.get("summary") or {}).get("total-files-size") or 0)
    return 0
