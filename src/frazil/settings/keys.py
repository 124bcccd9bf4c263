"""Paths of settings: which exist, how they are written, and what was probably meant.

A path is a tuple (``("catalog", "uri")``), because keys inside a map, such as Spark's, have dots of their own.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from frazil.errors import ConfigError
from frazil.settings.model import SettingsModel

Path = tuple[str, ...]
Shape = Literal["leaf", "section", "sections", "map"]


def shape_of(field: FieldInfo) -> tuple[Shape, type[BaseModel] | None]:
    """What hangs below a field: nothing, a section, named sections (`catalogs`), or a map of free keys."""
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(a for a in get_args(annotation) if a is not type(None))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section", annotation
    if get_origin(annotation) is dict:
        inner = get_args(annotation)[1]
        return ("sections", inner) if isinstance(inner, type) and issubclass(inner, BaseModel) else ("map", None)
    return "leaf", None


def resolve(parts: Path, *, written: str, where: str) -> Path:
    """The setting these parts name.

    Raises:
        ConfigError: there is none; it names the nearest that exists.
    """
    model: type[BaseModel] = SettingsModel
    for depth, part in enumerate(parts):
        field = model.model_fields.get(part)
        if field is None:
            raise unknown_key(written, where)
        shape, inner = shape_of(field)
        if shape == "leaf" and depth + 1 < len(parts):
            raise unknown_key(written, where)
        if shape == "map":
            rest = parts[depth + 1 :]
            return (*parts[: depth + 1], ".".join(rest)) if rest else parts[: depth + 1]
        if shape == "sections" and inner is not None:
            return _resolve_named(parts, depth, inner, written, where)
        if inner is not None:
            model = inner
    return parts


def _resolve_named(parts: Path, depth: int, inner: type[BaseModel], written: str, where: str) -> Path:
    if len(parts) <= depth + 2:
        return parts
    below = resolve(("catalog", *parts[depth + 2 :]), written=written, where=where)
    assert inner is SettingsModel.model_fields["catalog"].annotation
    return (*parts[: depth + 2], *below[1:])


def field_at(path: Path) -> FieldInfo | None:
    """The field a path leads to; None for an entry of a map."""
    model: type[BaseModel] = SettingsModel
    field: FieldInfo | None = None
    names = iter(path)
    for name in names:
        field = model.model_fields.get(name)
        if field is None:
            return None
        shape, inner = shape_of(field)
        if shape == "sections":
            next(names, None)
        if inner is not None:
            model = inner
        if shape == "map":
            return field if path[-1] == name else None
    return field


def known_keys() -> Iterator[tuple[str, FieldInfo]]:
    """Every setting that can be written, dotted, with its field; `catalogs.<name>.…` once."""
    yield from _walk(SettingsModel, "")


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        shape, inner = shape_of(field)
        if inner is None:
            yield prefix + name, field
        else:
            below = f"{prefix}{name}." + ("<name>." if shape == "sections" else "")
            yield from _walk(inner, below)


def unknown_key(written: str, where: str) -> ConfigError:
    from frazil.settings.names import FILE_NAMES

    candidates = [key for key, _ in known_keys() if "<name>" not in key] + list(FILE_NAMES)
    near = nearest(written, candidates)
    return ConfigError(
        f"{where}: there is no setting '{written}'",
        hint=f"{near}" if near else "frazil config show",
    )


def nearest(written: str, candidates: list[str]) -> str | None:
    """The candidate most like what was written; a key in the wrong section counts by its last part."""
    close = difflib.get_close_matches(written, candidates, n=1, cutoff=0.6)
    if close:
        return close[0]
    last = written.rsplit(".", 1)[-1]
    by_last = {c.rsplit(".", 1)[-1]: c for c in reversed(candidates)}
    close = difflib.get_close_matches(last, list(by_last), n=1, cutoff=0.7)
    return by_last[close[0]] if close else None


def dotted(path: Path) -> str:
    return ".".join(path)
