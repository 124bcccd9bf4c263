"""What the machine's environment says that is no setting of ours. With `load`, the only reader of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def java_home() -> Path | None:
    value = os.environ.get("JAVA_HOME")
    return Path(value) if value else None


def default_home() -> Path:
    """Where the embedded catalog lies when nobody says: the user's data folder."""
    return _default_folder("XDG_DATA_HOME", ".local/share")


def default_cache() -> Path:
    return _default_folder("XDG_CACHE_HOME", ".cache")


def user_file(environ: Mapping[str, str]) -> Path | None:
    """The user's settings file, if this environment has a user and the user has one."""
    if base := environ.get("XDG_CONFIG_HOME"):
        file = Path(base) / "frazil" / "config.yaml"
    elif home := environ.get("HOME"):
        file = Path(home) / ".config" / "frazil" / "config.yaml"
    else:
        return None
    return file if file.is_file() else None


def _default_folder(name: str, fallback: str) -> Path:
    value = os.environ.get(name)
    return (Path(value) if value else Path.home() / fallback) / "frazil"
