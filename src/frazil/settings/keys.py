"""Paths of settings: which exist, how they are written, and what was probably meant.

A path is a tuple (``("catalog", "uri")``), because keys inside a map, such as Spark's, have dots of their own.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from frazil.errors import ConfigError
from frazil.settings.model import SettingsModel

Path = tuple[str, ...]
Shape = Literal["leaf", "section", "sections", "map"]


def shape_of(field: FieldInfo) -> tuple[Shape, type[BaseModel] | None]:
    """Returns the shape of a field: a value, a section, named sections (`catalogs`), or a map of free keys."""
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(a for a in get_args(annotation) if a is not type(None))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section", annotation
    if get_origin(annotation) is dict:
        inner = get_args(annotation)[1]
        return ("sections", inner) if isinstance(inner, type) and issubclass(inner, BaseModel) else ("map", None)
    return "leaf", None


def resolve(written: str, *, where: str, spell: Callable[[str], str] = str, aliases: Iterable[str] = ()) -> Path:
    """Resolves a dotted key to the path of a setting or section.

    Args:
        written: for example `catalog.uri`; below a map the rest is one key, dots and all. A name with dots may stand
            in quotes: `upkeep.tables."topics.*".compact`.
        where: the place in which it stands, for the error.
        spell: how that place writes a key, for the hint.
        aliases: further keys that the place knows, for the hint.

    Raises:
        ConfigError: there is no such setting; it names the nearest that exists.
    """
    parts = _split(written)
    path = _descend(SettingsModel, parts)
    if path is None:
        raise unknown_key(parts, where, spell, aliases)
    return path


def _split(written: str) -> Path:
    """Splits a key at the dots outside of quotes."""
    parts = re.split(r'\.(?=(?:[^"]*"[^"]*")*[^"]*$)', written)
    return tuple(part[1:-1] if len(part) > 1 and part[0] == part[-1] == '"' else part for part in parts)


def _descend(model: type[BaseModel], parts: Path) -> Path | None:
    if not parts:
        return ()
    name, rest = parts[0], parts[1:]
    field = model.model_fields.get(name)
    if field is None:
        return None
    shape, inner = shape_of(field)
    if shape == "map":
        return (name, ".".join(rest)) if rest else (name,)
    if inner is None:
        return None if rest else (name,)
    if shape == "section" or not rest:
        below = _descend(inner, rest)
        return None if below is None else (name, *below)
    for end in range(1, len(rest) + 1 if has_dotted_names(field) else 2):
        below = _descend(inner, rest[end:])
        if below is not None:
            return (name, ".".join(rest[:end]), *below)
    return None


def has_dotted_names(field: FieldInfo) -> bool:
    """Whether the names of these sections may have dots, as patterns of tables do."""
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("dotted_names"))


def field_at(path: Path) -> FieldInfo | None:
    """Returns the field at a path; None for an entry of a map."""
    model: type[BaseModel] = SettingsModel
    field: FieldInfo | None = None
    rest = path
    while rest:
        field = model.model_fields.get(rest[0])
        if field is None:
            return None
        shape, inner = shape_of(field)
        rest = rest[2:] if shape == "sections" else rest[1:]
        if shape == "map":
            return None if rest else field
        if inner is not None:
            model = inner
    return field


def shape_at(path: Path) -> Shape:
    field = field_at(path)
    return "leaf" if field is None else shape_of(field)[0]


def known_keys() -> Iterator[tuple[str, FieldInfo]]:
    """Yields every setting as a dotted key with its field; `catalogs.<name>.…` once."""
    yield from _walk(SettingsModel, "")


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        shape, inner = shape_of(field)
        if inner is None:
            yield prefix + name, field
        else:
            below = f"{prefix}{name}." + ("<name>." if shape == "sections" else "")
            yield from _walk(inner, below)


def unknown_key(parts: Path, where: str, spell: Callable[[str], str] = str, aliases: Iterable[str] = ()) -> ConfigError:
    for end in range(1, len(parts)):
        if _descend(SettingsModel, parts[:end]) == parts[:end] and shape_at(parts[:end]) == "leaf":
            # What stands below is not told: it may be a secret that was written as a map.
            leaf = dotted(parts[:end])
            return ConfigError(
                f"{where}: '{leaf}' takes a single value, not a section", hint=f"quote the value of {leaf}"
            )
    candidates = [key.replace("<name>", _own_name(key, parts)) for key, _ in known_keys()]
    candidates = [key for key in candidates if "<name>" not in key]
    near = nearest(dotted(parts), [*candidates, *aliases])
    return ConfigError(
        f"{where}: unknown setting '{dotted(parts)}'",
        hint=spell(near) if near else "frazil config show lists all settings",
    )


def _own_name(key: str, parts: Path) -> str:
    """Returns the name in place of `<name>`, or `<name>` itself for another section."""
    before = tuple(key.partition("<name>")[0].rstrip(".").split("."))
    rest = parts[len(before) :]
    return ".".join(rest[:-1]) if parts[: len(before)] == before and len(rest) > 1 else "<name>"


def nearest(written: str, candidates: list[str]) -> str | None:
    """Returns the candidate nearest to a key; a key in the wrong section is compared by its last part."""
    close = difflib.get_close_matches(written, candidates, n=1, cutoff=0.6)
    if close:
        return close[0]
    last = written.rsplit(".", 1)[-1]
    by_last = {c.rsplit(".", 1)[-1]: c for c in reversed(candidates)}
    close = difflib.get_close_matches(last, list(by_last), n=1, cutoff=0.7)
    return by_last[close[0]] if close else None


def dotted(path: Path) -> str:
    return ".".join(path)
