"""The settings as rows that may be printed: every value, where it came from, secrets masked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from frazil.settings import keys
from frazil.settings.load import Settings
from frazil.settings.masking import masked


@dataclass(frozen=True)
class Row:
    key: str
    value: str | None
    source: str


def rows(settings: Settings, prefix: str | None = None) -> list[Row]:
    """One row a setting, in the model's order; with a prefix only those at or below it."""
    # The default catalog as it is used: with the embedded defaults filled in.
    catalog = settings.catalog().model_copy(update={"s3": settings.model.catalog.s3})
    model = settings.model.model_copy(update={"catalog": catalog})
    found = [_row(settings, path, value) for path, value in _leaves(model, ())]
    if prefix is None:
        return found
    chosen = [row for row in found if row.key == prefix or row.key.startswith(prefix + ".")]
    if not chosen:
        raise keys.unknown_key(prefix, "config show")
    return chosen


def _row(settings: Settings, path: keys.Path, value: Any) -> Row:
    shown = None if value is None else masked(path, value)
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
