"""Where the settings say that backups are kept."""

from __future__ import annotations

import re

from frazil.settings import Settings, ambient

_FOLDER = ("/", "./", "../", "~")


def repository_uri(settings: Settings) -> str:
    """Returns the root of the repository: a folder or `s3://bucket/prefix`. By default `backups` in home.

    Raises:
        ConfigError: nothing is set, and this user has no home folder.
    """
    bucket = settings.model.backup.bucket
    if not bucket:
        home = str(settings.model.home / "backups")
        ambient.require_known(home, "home")
        return home
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", bucket) or bucket.startswith(_FOLDER):
        return bucket
    return f"s3://{bucket}"
