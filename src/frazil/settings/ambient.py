"""What the machine's environment says that is no setting of ours. With `sources`, the only reader of it."""

from __future__ import annotations

import os
from pathlib import Path


def java_home() -> Path | None:
    value = os.environ.get("JAVA_HOME")
    return Path(value) if value else None


def default_home() -> Path:
    """Where the embedded catalog lies when nobody says: the user's data folder."""
    return _xdg("XDG_DATA_HOME", ".local/share")


def default_cache() -> Path:
    return _xdg("XDG_CACHE_HOME", ".cache")


def user_file() -> Path:
    return _xdg("XDG_CONFIG_HOME", ".config") / "config.yaml"


def _xdg(name: str, fallback: str) -> Path:
    value = os.environ.get(name)
    return (Path(value) if value else Path.home() / fallback) / "frazil"
