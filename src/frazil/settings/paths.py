"""Files and folders: how they are shown, and what a relative one is relative to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

from frazil.errors import ConfigError
from frazil.settings import keys
from frazil.settings.model import kind_of_uri
from frazil.settings.sources import Assignment

_SQLITE = "sqlite:///"
_LOOKS_LIKE_A_FOLDER = ("/", "./", "../", "~")
#: Keys of settings that name a folder, or a place elsewhere by its URI.
_FOLDERS = ("warehouse", "replicated_path")
#: Settings that name a folder or a place in a bucket.
_STORES = (("backup", "bucket"), ("content", "extract", "thumbnails"))


def shown(file: Path, folder: Path | None) -> str:
    """A file as a user finds it: from the current folder, or from home, or in full."""
    if folder and file.is_relative_to(folder):
        return str(file.relative_to(folder))
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() fails where there is none
    return f"~/{file.relative_to(home)}" if file.is_relative_to(home) else str(file)


def anchored(chosen: list[Assignment], folder: Path) -> list[Assignment]:
    """Relative paths made absolute: from the file they stand in, or else from the current folder."""
    values = {a.path: a.value for a in chosen}
    return [replace(a, value=_anchored(a, a.origin.folder or folder, values)) for a in chosen]


def _anchored(assignment: Assignment, folder: Path, values: Mapping[keys.Path, str]) -> str:
    path, text = assignment.path, assignment.value
    if not text or keys.field_at(path) is None:
        return text
    if _is_path(path) or (path[-1] in _FOLDERS and _is_folder(path, text, values)):
        return _absolute(text, folder, assignment)
    if path in _STORES and text.startswith(_LOOKS_LIKE_A_FOLDER):
        return _absolute(text, folder, assignment)
    if path[-1] in ("uri", "url") and text.lower().startswith(_SQLITE):
        return _SQLITE + _absolute(_database_file(path, text[len(_SQLITE) :]), folder, assignment)
    return text


def _database_file(path: keys.Path, text: str) -> str:
    """Of a catalog's uri without the options of other libraries: from here on it is a path, whatever is in it."""
    return text.split("?", 1)[0] if path[-1] == "uri" else text


def _is_path(path: keys.Path) -> bool:
    field = keys.field_at(path)
    return field is not None and Path in (field.annotation, *get_args(field.annotation))


def _is_folder(path: keys.Path, text: str, values: Mapping[keys.Path, str]) -> bool:
    """Whether a warehouse is a folder: no URI, and no name that a REST catalog gave it."""
    section = path[:-1]
    kind = values.get((*section, "kind")) or kind_of_uri(values.get((*section, "uri"), ""))
    return text.startswith(_LOOKS_LIKE_A_FOLDER) or (":" not in text and kind != "rest")


def _absolute(text: str, folder: Path, assignment: Assignment) -> str:
    try:
        return os.path.normpath(folder / Path(text).expanduser())
    except RuntimeError:
        told = f"{assignment.origin}: {keys.dotted(assignment.path)} is '{text}', but that home folder does not exist"
        raise ConfigError(told, hint="write the full path") from None
