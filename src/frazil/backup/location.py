"""The repository that the settings name: opens it, and checks it for `frazil doctor`."""

from __future__ import annotations

import re

from frazil.backup.format import BackupRecord
from frazil.backup.repository import Repository, require_object_lock
from frazil.errors import IntegrityError, NotFoundError
from frazil.settings import Settings, environment
from frazil.settings.permissions import make_private_folder
from frazil.storage import parse
from frazil.storage.buckets import inspect_bucket
from frazil.upkeep.plans.format_amounts import format_age, format_count

_FOLDER = ("/", "./", "../", "~")


def repository_uri(settings: Settings) -> str:
    """Returns the root of the repository: a folder or `s3://bucket/prefix`. By default `backups` in home.

    Raises:
        ConfigError: nothing is set, and this user has no home folder.
    """
    bucket = settings.model.backup.bucket
    if not bucket:
        home = str(settings.model.home / "backups")
        environment.require_known(home, "home")
        return home
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", bucket) or bucket.startswith(_FOLDER):
        return bucket
    return f"s3://{bucket}"


def open_repository(settings: Settings, *, create: bool = False) -> Repository:
    """Opens the repository of the settings.

    Args:
        settings: `backup`, with the access to S3.
        create: to write backups: make it where there is none, and lock what is written for `backup.lock_days`.

    Raises:
        NotFoundError: there is none.
        IntegrityError: what is there is not a repository, or is damaged.
        UnsupportedError: it is newer than this version of Frazil.
    """
    model, uri = settings.model, repository_uri(settings)
    if create and parse(uri).scheme == "file":
        make_private_folder(parse(uri).path)  # it has copies of what may be readable by its owner only
    return Repository.open(
        uri,
        s3=model.s3,
        network=model.network,
        create=create,
        lock_days=model.backup.lock_days if create else None,
    )


# -- frazil doctor


def check_repository(settings: Settings) -> str:
    """Returns in one line what the repository of the settings holds. Changes nothing.

    Raises:
        NotFoundError: its bucket does not exist.
        UnsupportedError: `backup.lock_days` is set, and the bucket has no Object Lock.
        IntegrityError: records of backups are damaged.
        FrazilError: it cannot be read.
    """
    uri = repository_uri(settings)
    locked, days = "", settings.model.backup.lock_days
    if days is not None:
        require_object_lock(uri, settings.model.s3, settings.model.network)
        locked = f"; every object is locked for {format_count(days, 'day')}"
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


def _require_bucket(settings: Settings, uri: str) -> None:
    location = parse(uri)
    if location.scheme == "s3":
        state = inspect_bucket(location.bucket, settings.model.s3, settings.model.network)
        if not state.exists:
            raise NotFoundError(
                f"there is no bucket s3://{location.bucket} for backups",
                hint="create it, or name another one: backup.bucket",
            )
