"""The repository that the settings name."""

from __future__ import annotations

import re

from frazil.backup.repository import Repository
from frazil.settings import Settings, environment
from frazil.settings.permissions import make_private_folder
from frazil.storage import parse

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
