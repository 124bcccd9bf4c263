"""The catalogs of PyIceberg's own configuration, so that nobody who has one configures anything twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import get_args

from pydantic import ValidationError

from frazil.settings import environment
from frazil.settings.model import CatalogKind, CatalogSettings
from frazil.settings.names import PYICEBERG_NAMES
from frazil.settings.paths import shown
from frazil.settings.permissions import require_trusted
from frazil.settings.sources import FALLBACK, FOREIGN, Assignment, Layer, Origin
from frazil.settings.validate import problem_of, tree_of
from frazil.settings.yaml_file import read_yaml

FILE = ".pyiceberg.yaml"
_PREFIX = "pyiceberg_"
_RANK = {name: rank for rank, name in enumerate(PYICEBERG_NAMES, start=FALLBACK + FOREIGN)}
_CONVERT: dict[str, Callable[[str], str]] = {
    "type": str.lower,
    "s3.force-virtual-addressing": lambda text: "false" if text.lower() in ("true", "yes", "on", "1") else "true",
}


@dataclass(frozen=True)
class PyIcebergCatalogs:
    """What PyIceberg knows: catalogs that Frazil can use, why it cannot use the others, and the default's name."""

    usable: dict[str, list[Assignment]]
    unusable: dict[str, str]
    default: str

    def only_or_default(self) -> str | None:
        named = next((name for name in (*self.usable, *self.unusable) if name.lower() == self.default), None)
        return named or (next(iter(self.usable)) if len(self.usable) == 1 else None)


def from_pyiceberg(environ: Mapping[str, str], folder: FilePath | None) -> PyIcebergCatalogs:
    """Reads `.pyiceberg.yaml` (the first found, in PyIceberg's order) and PYICEBERG_CATALOG__NAME__KEY."""
    homes = [environ.get("PYICEBERG_HOME"), environ.get("HOME"), folder]
    candidates = (FilePath(home) / FILE for home in homes if home)
    file = next((file for file in candidates if environment.sees(file)), None)
    if file is not None:
        require_trusted(file, hint=f"chown $USER {file} and chmod go-w {file}; or another folder, or PYICEBERG_HOME")
    names: dict[str, str] = {}
    found: dict[str, list[Assignment]] = {}
    default = "default"
    for path, value, origin in [*(_file_entries(file, folder) if file else ()), *_variables(environ)]:
        if path == ("default-catalog",):
            default = value.lower()
        elif len(path) >= 3 and path[0] == "catalog":
            # PyIceberg does not tell capitals; the file's spelling is the one that people know.
            name = names.setdefault(path[1].lower(), path[1])
            found.setdefault(name, []).append(_assignment(".".join(path[2:]).lower(), value, origin))
    unusable = {name: reason for name, entries in found.items() if (reason := _why_not(name, entries))}
    return PyIcebergCatalogs({n: e for n, e in found.items() if n not in unusable}, unusable, default)


def _file_entries(file: FilePath, folder: FilePath | None) -> Iterator[tuple[tuple[str, ...], str, Origin]]:
    where = shown(file, folder)
    for path, value, line in read_yaml(file, where):
        if value:
            yield (path[0].lower(), *path[1:]), value, Origin(Layer.PYICEBERG, f"{where}:{line}")


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], str, Origin]]:
    for variable, text in environ.items():
        if text and variable.lower().startswith(_PREFIX):
            parts = variable.lower().removeprefix(_PREFIX).split("__", maxsplit=2)
            path = tuple(part.replace("__", ".").replace("_", "-") for part in parts)
            yield path, text, Origin(Layer.ENVIRONMENT, variable)


def _assignment(key: str, value: str, origin: Origin) -> Assignment:
    path = PYICEBERG_NAMES.get(key, ("properties", key))
    family = f"pyiceberg {key.split('.')[0]}"
    return Assignment(path, _CONVERT.get(key, str)(value), origin, _RANK.get(key, FALLBACK), family)


def _why_not(name: str, entries: list[Assignment]) -> str | None:
    values = {a.path: a.value for a in sorted(entries, key=lambda a: a.strength, reverse=True)}
    if ("properties", "py-catalog-impl") in values:
        return "it is implemented by a Python class (py-catalog-impl), which Spark cannot use"
    if not {("kind",), ("uri",)} & set(values):
        return "it has neither a type nor a uri"
    if (kind := values.get(("kind",), "sql")) not in get_args(CatalogKind):
        return f"Frazil does not support catalogs of type '{kind}', only {', '.join(get_args(CatalogKind))}"
    try:
        CatalogSettings.model_validate({**tree_of(values), "name": name})
    except ValidationError as error:
        path, problem = problem_of(error)
        return f"{'.'.join(path) or 'its settings'}: {problem}"
    return None
