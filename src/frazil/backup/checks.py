"""What `frazil doctor` checks of the repository."""

from __future__ import annotations

from frazil.backup.format import BackupRecord
from frazil.backup.location import open_repository, repository_uri
from frazil.errors import IntegrityError, NotFoundError, UnsupportedError
from frazil.settings import Settings
from frazil.storage import parse
from frazil.storage.buckets import inspect_bucket
from frazil.storage.object_lock import check_object_lock
from frazil.upkeep.plans.format_amounts import format_age, format_count


def check_repository(settings: Settings) -> str:
    """Returns in one line what the repository of the settings holds. Changes nothing.

    Raises:
        NotFoundError: its bucket does not exist.
        UnsupportedError: `backup.lock_days` is set, and the bucket has no Object Lock.
        IntegrityError: records of backups are damaged.
        FrazilError: it cannot be read.
    """
    uri = repository_uri(settings)
    locked = _check_lock(settings, uri)
    try:
        repository = open_repository(settings)
    except NotFoundError:
        _require_bucket(settings, uri)
        return f"{uri}: no backups yet{locked}"
    found = repository.list_records()
    records = [record for record in found if isinstance(record, BackupRecord)]
    damaged = [record for record in found if not isinstance(record, BackupRecord)]
    if damaged:
        raise IntegrityError(
            f"{uri}: {len(damaged)} of {format_count(len(found), 'backup')} cannot be used",
            cause=damaged[0].error.in_one_line,
            hint="frazil backup list; what the others hold can be restored",
        )
    newest = ""
    if records:
        newest = f", the newest {format_age((repository.now() - records[-1].created_at).total_seconds())} old"
    return f"{uri}: {format_count(len(records), 'backup')}{newest}{locked}"


def _check_lock(settings: Settings, uri: str) -> str:
    """Returns what is to be said of write-once storage; nothing where it is not asked for."""
    days, location = settings.model.backup.lock_days, parse(uri)
    if days is None:
        return ""
    if location.scheme != "s3":
        raise UnsupportedError(
            f"backup.lock_days is set, and {uri} is not a bucket of S3", hint="backup.bucket: s3://bucket/prefix"
        )
    lock = check_object_lock(location.bucket, settings.model.s3, settings.model.network)
    if lock.problem is not None:
        raise UnsupportedError(
            f"backup.lock_days is set, and bucket s3://{location.bucket} cannot lock objects",
            cause=lock.problem,
            hint="a bucket that was created with Object Lock, or no backup.lock_days",
        )
    return f"; every object is locked for {format_count(days, 'day')}"


def _require_bucket(settings: Settings, uri: str) -> None:
    location = parse(uri)
    if location.scheme == "s3":
        state = inspect_bucket(location.bucket, settings.model.s3, settings.model.network)
        if not state.exists:
            raise NotFoundError(
                f"there is no bucket s3://{location.bucket} for backups",
                hint="create it, or name another one: backup.bucket",
            )
