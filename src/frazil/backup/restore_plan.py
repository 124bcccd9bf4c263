"""Plans a restore: which snapshots of a backup come back, where and under which name. Changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from frazil.backup.format import BackedUpTable, BackupRecord, BlobRef, CopiedFile, DataMode
from frazil.backup.references import Kind, find_absent
from frazil.backup.repository import Repository, tombstone_key
from frazil.backup.restore_contents import (
    RestoreContents,
    get_current_snapshot,
    get_refs,
    iterate_files,
    list_source_folders,
    load_contents,
    map_folders,
    shorten,
)
from frazil.backup.restore_location import (
    check_location,
    choose_location,
    find_default_location,
    find_existing_location,
    require_usable,
)
from frazil.catalogs import parse_name
from frazil.errors import ConflictError, IntegrityError, NotAllowedError, UsageError
from frazil.observe.cancellation import raise_if_stopped
from frazil.tables.publishing import PublicationPlan, plan_publication
from frazil.upkeep.plans.format_amounts import format_count

if TYPE_CHECKING:
    from frazil.upkeep.context import UpkeepContext

Action = Literal["create", "replace", "keep"]


@dataclass(frozen=True)
class RestoreTarget:
    """What to restore, under which name and where.

    Attributes:
        name: `namespace.table` of the restored table.
        location: its folder; None: where the catalog puts new tables, or beside the table that is replaced.
        snapshot: the snapshot that becomes current; with its ancestors, and branches and tags that are not newer.
        as_of: the same by time: the snapshot that was current then.
        if_not_exists: do nothing where a table of this name exists.
        replace: re-point a table that exists to the restored one.
        current_only: only the current snapshot, and no branch or tag but main.
        allow_erased: leave out data files whose content was erased from the repository.
    """

    name: str
    location: str | None = None
    snapshot: int | None = None
    as_of: datetime | None = None
    if_not_exists: bool = False
    replace: bool = False
    current_only: bool = False
    allow_erased: bool = False


@dataclass(frozen=True)
class RestorePlan:
    """A restore, ready to run.

    Attributes:
        backup: name of the backup.
        backup_id: of the backup.
        backed_up_at: when the backup was made.
        table: what the record says of the source.
        data: `referenced`: data files stay where they are.
        contents: what comes back.
        source_folders: that cover every path of the source; its location first.
        identifier: of the restored table.
        catalog: that it will be in.
        catalog_kind: sql, rest, nessie, s3tables, glue or hive.
        action: `keep`: a table of this name exists and is left alone.
        restore_id: equal for a second run of the same restore.
        location: of the restored table; None where the catalog assigns it when the restore runs, because it always does
            so (S3 Tables), or because the namespace does not exist yet (REST).
        files: to copy or rewrite.
        bytes: of these.
        uuid: `same` as that of the table that is replaced, or `new`.
        publication: how the catalog will come to name it; None for `keep`.
        losses: what the restored table will lack, one sentence each.
        warnings: what the user must know.
        erased: source paths of data files that are left out.
    """

    backup: str
    backup_id: str
    backed_up_at: datetime
    table: BackedUpTable
    data: DataMode
    contents: RestoreContents = field(repr=False)
    source_folders: tuple[str, ...]
    identifier: tuple[str, ...]
    catalog: str
    catalog_kind: str
    action: Action
    restore_id: str
    location: str | None = None
    files: int = 0
    bytes: int = 0
    uuid: Literal["same", "new"] = "same"
    publication: PublicationPlan | None = None
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    erased: tuple[str, ...] = ()

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that will be current."""
        return get_current_snapshot(self.contents.metadata)

    @property
    def snapshots(self) -> int:
        return len(self.contents.metadata.get("snapshots") or ())

    @property
    def refs(self) -> tuple[str, ...]:
        """Branches and tags."""
        return tuple(sorted(get_refs(self.contents.metadata)))

    @property
    def name(self) -> str:
        return ".".join(self.identifier)

    @property
    def prefixes(self) -> tuple[tuple[str, str], ...]:
        """Source folders and their targets; none while the location is not known."""
        return map_folders(self.source_folders, self.location, self.backup_id) if self.location else ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON."""
        return {
            "backup": self.backup,
            "source": ".".join(self.table.identifier),
            "source_catalog": self.table.catalog,
            "target": self.name,
            "catalog": self.catalog,
            "catalog_kind": self.catalog_kind,
            "action": self.action,
            "method": self.publication.method if self.publication else None,
            "location": self.location,
            "prefixes": [{"from": source, "to": target} for source, target in self.prefixes],
            "uuid": self.uuid,
            "data": self.data,
            "files": self.files,
            "bytes": self.bytes,
            "snapshot_id": self.snapshot_id,
            "snapshots": self.snapshots,
            "refs": list(self.refs),
            "losses": list(self.losses),
            "warnings": list(self.warnings),
            "erased_files": list(self.erased),
        }


def plan_restore(
    care: UpkeepContext, repository: Repository, record: BackupRecord, table: BackedUpTable, target: RestoreTarget
) -> RestorePlan:
    """Plans a restore. Changes nothing.

    Args:
        care: of the catalog that the table will be in.
        repository: that holds the backup.
        record: of the backup.
        table: of the record.
        target: what to restore, and where.

    Raises:
        ConflictError: the name is taken, or the folder is.
        NotFoundError: the snapshot or time is not in the backup; or there is no table to replace.
        NotAllowedError: the folder belongs to a table, or content was erased.
        IntegrityError: the repository lacks a file, or what it has is damaged.
        UnsupportedError: the catalog cannot hold the table.
        UsageError: the options contradict each other.
    """
    if target.if_not_exists and target.replace:
        raise UsageError("--if-not-exists and --replace contradict each other", hint="choose one of them")
    location = None if target.location is None else check_location(target.location)
    identifier = parse_name(target.name, care.catalog.name)
    state = repository.read_state(table)
    contents, notes = load_contents(
        repository, state, snapshot=target.snapshot, as_of=target.as_of, current_only=target.current_only
    )
    plan = RestorePlan(
        backup=record.name,
        backup_id=record.id,
        backed_up_at=record.created_at,
        table=table,
        data=record.data,
        contents=contents,
        source_folders=list_source_folders(table, state),
        identifier=identifier,
        catalog=care.catalog.name,
        catalog_kind=care.catalog.resolved_kind,
        action="keep",
        restore_id=_identify(repository, record, table, care.catalog.name, identifier, target),
    )
    try:
        publication = plan_publication(
            care.store,
            identifier,
            contents.metadata,
            replace=target.replace,
            current_only=target.current_only,
            location=location,
        )
    except ConflictError as error:
        if target.if_not_exists:
            return plan
        raise ConflictError(
            error.message,
            cause=error.cause,
            hint="--to with another name, or --replace: `frazil backup rollback` undoes it",
        ) from None
    files, size, erased = _survey(care, repository, contents)
    if erased:
        _require_allowed(erased, target)
        notes.append(f"left out, with their rows: {format_count(len(erased), 'data file')} whose content was erased")
    return replace(
        plan,
        catalog_kind=publication.flavor,
        action="replace" if target.replace else "create",
        location=publication.location or _choose_location(care, plan, publication, location),
        files=files,
        bytes=size,
        uuid="same" if target.replace else "new",
        publication=publication,
        losses=(*notes, *publication.losses),
        warnings=tuple(_list_warnings(plan, publication)),
        erased=tuple(sorted(file.path for file in erased)),
    )


def _identify(
    repository: Repository,
    record: BackupRecord,
    table: BackedUpTable,
    catalog: str,
    identifier: tuple[str, ...],
    target: RestoreTarget,
) -> str:
    as_of = target.as_of.isoformat() if target.as_of else None
    what = [record.id, repository.id, table.identifier, table.uuid, table.state.sha256]
    which = [catalog, identifier, target.snapshot, as_of, target.current_only, target.allow_erased, target.replace]
    return hashlib.sha256(json.dumps([what, which]).encode()).hexdigest()


def _choose_location(
    care: UpkeepContext, plan: RestorePlan, publication: PublicationPlan, location: str | None
) -> str | None:
    if location is not None:
        require_usable(care, location, plan.restore_id, plan.source_folders)
        return location
    if publication.method == "create+updates":
        return None
    if publication.expected is not None:
        base = find_existing_location(care.store, plan.identifier)
        return choose_location(care, base, plan.backed_up_at, plan.restore_id, is_new=False)
    found = find_default_location(care.store, plan.identifier)
    if found is None:
        return None
    return choose_location(care, found, plan.backed_up_at, plan.restore_id, is_new=True)


def _list_warnings(plan: RestorePlan, publication: PublicationPlan) -> Iterator[str]:
    if plan.data == "referenced":
        yield (
            f"the data files were not copied by the backup: the restored table reads those of "
            f"{'.'.join(plan.table.identifier)} in {plan.table.location}, and loses rows when they are deleted"
        )
        yield "the restored table has gc.enabled=false, so that no engine deletes these files"
    if publication.expected is not None:
        yield (
            f"commits to {plan.name} since the backup are not visible any more; frazil backup rollback {plan.name} "
            f"brings them back as long as {publication.expected} and its files exist"
        )


# -- what the repository holds


def _survey(
    care: UpkeepContext, repository: Repository, contents: RestoreContents
) -> tuple[int, int, list[CopiedFile]]:
    """Returns count and bytes of the files to copy, and those that were erased.

    Raises:
        IntegrityError: a file is missing that was not erased.
    """
    count = size = 0

    def needed() -> Iterator[tuple[Kind, BlobRef]]:
        nonlocal count, size
        for file in iterate_files(repository, contents.manifests):
            raise_if_stopped(care.stop)
            count, size = count + 1, size + file.size
            if file.blob is not None:
                yield "data", file.blob
        for statistics in contents.statistics:
            count, size = count + 1, size + statistics.blob.size
            yield "data", statistics.blob

    lost = find_absent(repository, needed())
    if len(lost) == 0:
        return count, size, []
    tombstones = {info.key for info in repository.store.list("data") if info.key.endswith(".erased")}
    absent = [f for f in iterate_files(repository, contents.manifests) if f.blob and lost.has("data", f.blob)]
    names = [s.path for s in contents.statistics if lost.has("data", s.blob)]
    missing = [f.path for f in absent if f.blob and tombstone_key(f.blob) not in tombstones] + names
    if missing:
        raise IntegrityError(
            f"the repository lacks {len(missing)} files of the backup: {shorten(missing)}",
            cause="they are missing, or have another size than their name says",
            hint="frazil backup verify names all damage; restore another backup of the table",
        ).adding("nothing was restored", missing_files=missing)
    return count - len(absent), size - sum(f.size for f in absent), absent


def _require_allowed(erased: list[CopiedFile], target: RestoreTarget) -> None:
    deletes = [file.path for file in erased if file.content != 0]
    if deletes:
        raise NotAllowedError(
            f"the content of {len(deletes)} delete files was erased: without them, deleted rows would come back: "
            f"{shorten(deletes)}",
            hint="restore a backup, or a snapshot of this one, without these files",
        )
    if not target.allow_erased:
        paths = [file.path for file in erased]
        raise NotAllowedError(
            f"the content of {format_count(len(paths), 'file')} of this backup was erased on purpose: {shorten(paths)}",
            hint="--allow-erased restores the table without these files and their rows",
        ).adding("nothing was restored", erased_files=paths)
