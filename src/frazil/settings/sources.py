"""Reads flags, environment and files into assignments: which setting, which value, from where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path as FilePath
from typing import Any

import yaml

from frazil.errors import ConfigError, UsageError
from frazil.settings import keys
from frazil.settings.names import ENVIRONMENT_NAMES, FILE_NAMES, FIXED_KEYS, PYICEBERG_NAMES

PROJECT_FILE = "frazil.yaml"
#: Environment names of ours that are no settings: they say where settings are.
CONFIG_VARIABLE = "FRAZIL_CONFIG"
_PREFIX = "FRAZIL_"
_PYICEBERG_PREFIX = "PYICEBERG_CATALOG__"


class Layer(IntEnum):
    """Where a value can come from, strongest first."""

    FLAG = 0
    ENVIRONMENT = 1
    PROJECT = 2
    USER = 3
    PYICEBERG = 4
    DEFAULT = 5


@dataclass(frozen=True)
class Origin:
    """Where one value came from, as a user can find it: a variable's name, or file:line."""

    layer: Layer
    name: str
    folder: FilePath | None = None
    announce: bool = False

    def __str__(self) -> str:
        return {Layer.FLAG: f"flag {self.name}", Layer.ENVIRONMENT: f"environment {self.name}"}.get(self.layer, self.name)


DEFAULT_ORIGIN = Origin(Layer.DEFAULT, "default")


@dataclass(frozen=True)
class Assignment:
    """One value for one setting. Among those of one layer the lower rank is used; `family` groups a key with its secret."""

    path: keys.Path
    value: Any
    origin: Origin
    rank: int = 0
    family: str = ""

    @property
    def is_weak(self) -> bool:
        return self.rank >= _WEAK


_WEAK = 1000


def from_flags(flags: Mapping[str, str]) -> Iterator[Assignment]:
    """`--set key=value`, and options of the command line that are settings."""
    for written, value in flags.items():
        path = keys.resolve(tuple(written.split(".")), written=written, where="--set")
        yield Assignment(path, value, Origin(Layer.FLAG, f"--set {written}"), family="flags")


def parse_set(items: list[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator:
            raise UsageError(f"--set takes key=value, got '{item}'", hint="--set catalog.uri=http://localhost:8181")
        if flags.get(key, value) != value:
            raise UsageError(f"--set {key} is given twice: '{flags[key]}' and '{value}'", hint="give it once")
        flags[key] = value
    return flags


def from_environment(environ: Mapping[str, str]) -> Iterator[Assignment]:
    for variable, text in environ.items():
        if variable.startswith(_PREFIX) and variable != CONFIG_VARIABLE:
            parts = tuple(p.lower() for p in variable.removeprefix(_PREFIX).split("__"))
            written = ".".join(parts)
            path = keys.resolve(parts, written=written, where=f"environment variable {variable}")
            yield from _expanded(path, text, Origin(Layer.ENVIRONMENT, variable), variable)
    for rank, (variable, name) in enumerate(ENVIRONMENT_NAMES.items(), start=1):
        if environ.get(variable):
            origin = Origin(Layer.ENVIRONMENT, variable, announce=name.announce)
            yield Assignment(name.path, name.convert(environ[variable]), origin, rank, family=variable.split("_")[0])


def _expanded(path: keys.Path, text: str, origin: Origin, variable: str) -> Iterator[Assignment]:
    """A map in one variable is written as YAML or JSON: FRAZIL_SPARK__CONF='{"spark.x": "1"}'."""
    field = keys.field_at(path)
    if field is None or keys.shape_of(field)[0] != "map":
        yield Assignment(path, text, origin, family=_PREFIX)
        return
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"environment variable {variable} is not valid YAML or JSON: {text}") from error
    if not isinstance(entries, dict):
        raise ConfigError(f"environment variable {variable} must hold a map", hint=f"{variable}='{{\"key\": \"value\"}}'")
    for key, value in entries.items():
        yield Assignment((*path, str(key)), value, origin, family=_PREFIX)


def from_file(file: FilePath, layer: Layer) -> Iterator[Assignment]:
    for parts, value, line in read_yaml(file):
        written = ".".join(parts)
        origin = Origin(layer, f"{file.name}:{line}", folder=file.parent)
        if written in FIXED_KEYS:
            if value not in FIXED_KEYS[written]:
                valid = " or ".join(FIXED_KEYS[written])
                raise ConfigError(f"{origin}: {written} is '{value}'", hint=f"{written}: {valid}")
        elif (name := FILE_NAMES.get(written)) is not None:
            rank = _WEAK if name.weak else 0
            yield Assignment(name.path, name.convert(value), origin, rank, family=file.name)
        else:
            path = keys.resolve(parts, written=written, where=str(origin))
            yield Assignment(path, value, origin, family=file.name)


def read_yaml(file: FilePath) -> Iterator[tuple[keys.Path, Any, int]]:
    """Each scalar of a YAML file with its path and line.

    Raises:
        ConfigError: it cannot be read, is no YAML (with line and column), or names a key twice.
    """
    try:
        node = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError(
            f"{file}{place}: this is not valid YAML", cause=error.problem, hint="look at the indentation and quotes there"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: this is not valid YAML", hint="save it as UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read", cause=error.strerror, hint=f"ls -l {file}") from error
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{file}:1: a settings file is a map of sections", hint="catalog:\n  uri: …")
    yield from _scalars(node, (), file)


def _scalars(node: yaml.MappingNode, prefix: keys.Path, file: FilePath) -> Iterator[tuple[keys.Path, Any, int]]:
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key in seen:
            raise ConfigError(
                f"{file}:{line}: '{'.'.join((*prefix, key))}' stands here and in line {seen[key]}", hint="keep one of the two"
            )
        seen[key] = line
        if isinstance(value_node, yaml.MappingNode):
            yield from _scalars(value_node, (*prefix, key), file)
        else:
            value = yaml.SafeLoader("").construct_object(value_node, deep=True)  # type: ignore[no-untyped-call]
            if value is not None:
                yield (*prefix, key), value, line


def find_project_file(start: FilePath) -> FilePath | None:
    """`frazil.yaml` here or in a folder above, as git finds its own."""
    return next((folder / PROJECT_FILE for folder in (start, *start.parents) if (folder / PROJECT_FILE).is_file()), None)


@dataclass(frozen=True)
class PyIcebergCatalogs:
    """The catalogs that PyIceberg's own configuration names, and the one it would take by default."""

    assignments: dict[str, list[Assignment]]
    default: str | None

    def only_or_default(self) -> str | None:
        if self.default in self.assignments:
            return self.default
        return next(iter(self.assignments)) if len(self.assignments) == 1 else None


def from_pyiceberg(environ: Mapping[str, str], folders: list[FilePath]) -> PyIcebergCatalogs:
    """Reads `.pyiceberg.yaml` (the first found, as PyIceberg does) and PYICEBERG_CATALOG__NAME__KEY."""
    found: dict[str, list[Assignment]] = {}
    default = environ.get("PYICEBERG_DEFAULT_CATALOG", "default")
    file = next((f / ".pyiceberg.yaml" for f in folders if (f / ".pyiceberg.yaml").is_file()), None)
    for parts, value, line in read_yaml(file) if file else ():
        if parts == ("default-catalog",):
            default = str(value)
        if len(parts) >= 3 and parts[0] == "catalog":
            origin = Origin(Layer.PYICEBERG, f"{file.name}:{line}" if file else "", folder=None)
            found.setdefault(parts[1].lower(), []).append(_pyiceberg(".".join(parts[2:]).lower(), value, origin, rank=2))
    for variable, text in environ.items():
        if not variable.upper().startswith(_PYICEBERG_PREFIX):
            continue
        name, _, key = variable[len(_PYICEBERG_PREFIX) :].lower().partition("__")
        if key:
            origin = Origin(Layer.ENVIRONMENT, variable)
            written = key.replace("__", ".").replace("_", "-")
            found.setdefault(name.replace("_", "-"), []).append(_pyiceberg(written, text, origin, rank=1))
    return PyIcebergCatalogs(found, default.lower())


def _pyiceberg(key: str, value: Any, origin: Origin, rank: int) -> Assignment:
    path = PYICEBERG_NAMES.get(key, ("properties", key))
    if path == ("kind",) and value not in ("sql", "rest", "glue", "hive"):
        raise ConfigError(
            f"{origin}: Frazil has no catalog of PyIceberg's type '{value}'", hint="sql, rest, glue or hive; or choose another with --catalog"
        )
    return Assignment(path, value, origin, rank=500 + rank, family="pyiceberg")
