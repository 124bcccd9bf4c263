"""The settings as rows that may be printed: every value, where it came from, secrets masked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from frazil.settings import keys
from frazil.settings.load import Settings
from frazil.settings.masking import masked
from frazil.settings.model import SettingsModel
from frazil.settings.names import FILE_NAMES


@dataclass(frozen=True)
class Row:
    key: str
    value: str | float | None
    """Numbers and truth values as they are, all else as text."""
    source: str


def rows(settings: Settings, key: str | None = None) -> list[Row]:
    """Returns one row per setting, in the model's order; with a key only those at or below it.

    Raises:
        ConfigError: there is no such key.
        NotFoundError: there is no such catalog.
    """
    wanted = _wanted(settings, key) if key else ()
    leaves = _leaves(_as_used(settings), ())
    return [_row(settings, path, value) for path, value in leaves if path[: len(wanted)] == wanted]


def _wanted(settings: Settings, key: str) -> keys.Path:
    if (name := FILE_NAMES.get(key)) is not None:
        return name.path
    path = keys.resolve(key, where="config show")
    if path[0] != "catalogs" or len(path) == 1:
        return path
    is_default = settings.catalog(path[1]).name == settings.model.catalog.name
    return ("catalog", *path[2:]) if is_default else path


def _as_used(settings: Settings) -> SettingsModel:
    """Returns the model with the defaults that a catalog gets when it is opened."""
    model = settings.model
    completed = {}
    for name, catalog in {model.catalog.name: model.catalog, **model.catalogs}.items():
        used = settings.catalog(name)
        own = {"s3": catalog.s3, "uri": catalog.uri or used.uri}
        completed[name] = used.model_copy(update=own)
    return model.model_copy(update={"catalog": completed.pop(model.catalog.name), "catalogs": completed})


def _row(settings: Settings, path: keys.Path, value: Any) -> Row:
    shown = value if value is None or isinstance(value, (bool, int, float)) else masked(path, value)
    return Row(keys.dotted(path), shown, str(settings.origin(path)))


def _leaves(node: BaseModel, prefix: keys.Path) -> Iterator[tuple[keys.Path, Any]]:
    for name in type(node).model_fields:
        value = getattr(node, name)
        path = (*prefix, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, path)
        elif isinstance(value, dict):
            for key, entry in value.items():
                if isinstance(entry, BaseModel):
                    yield from _leaves(entry, (*path, key))
                else:
                    yield (*path, key), entry
        else:
            yield path, value
