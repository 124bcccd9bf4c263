"""Reads flags, environment and files into assignments: which setting, which value, from where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path as FilePath

from frazil.errors import ConfigError, UsageError
from frazil.settings import environment, keys
from frazil.settings.names import ENVIRONMENT_NAMES, FILE_NAMES, FIXED_KEYS
from frazil.settings.yaml_file import parse_yaml, read_yaml

PROJECT_FILE = "frazil.yaml"
#: Environment name of ours that is no setting: it says where settings are.
CONFIG_VARIABLE = "FRAZIL_CONFIG"
_PREFIX = "FRAZIL_"
#: What Kubernetes tells every container about a Service `frazil` or `frazil-…`; a setting in a section has two `_`.
_OF_KUBERNETES = re.compile(
    r"(?!.*__)FRAZIL_(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST=.*|SERVICE_PORT(?:_[A-Z0-9_]+)?=\d+|PORT(?:_\d+_(?:TCP|UDP|SCTP))?=(?:tcp|udp|sctp)://.*"
    r"|PORT_\d+_(?:TCP|UDP|SCTP)_(?:PROTO|PORT|ADDR)=.*)"
)


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
    """What a relative path is relative to; None for the current folder."""
    announce: bool = False

    def __str__(self) -> str:
        if self.layer is Layer.ENVIRONMENT:
            return f"environment {self.name}"
        return f"flag {self.name}" if self.name.startswith("--") else self.name

    @property
    def source(self) -> str:
        """Returns the source without the line."""
        return str(self) if self.layer in (Layer.FLAG, Layer.ENVIRONMENT) else self.name.rsplit(":", 1)[0]


DEFAULT_ORIGIN = Origin(Layer.DEFAULT, "default")

#: Ranks within a layer: our own names, then those of others in the order of their list, then fallbacks.
OWN, FOREIGN, FALLBACK = 0, 1, 1000


@dataclass(frozen=True)
class Assignment:
    """One value for one setting, as text. Among those of one layer the lower rank is used."""

    path: keys.Path
    value: str
    origin: Origin
    rank: int = OWN
    family: str = ""
    """An access key and its secret are used together only when they are of one family."""

    @property
    def strength(self) -> tuple[int, int]:
        """Returns the precedence: lower is stronger."""
        return self.origin.layer, self.rank

    def at(self, path: keys.Path) -> Assignment:
        return replace(self, path=path)


def from_flags(flags: Mapping[str, str], option: str = "--set") -> Iterator[Assignment]:
    """Reads `--set key=value`, or the arguments of a call.

    Args:
        flags: values by dotted key.
        option: how errors name the place where they were given.
    """
    for written, value in flags.items():
        path = keys.resolve(written, where=option)
        yield from _assigned(Assignment(path, value, Origin(Layer.FLAG, f"{option} {written}"), family="flags"))


def parse_set(items: list[str]) -> dict[str, str]:
    """Parses the values of `--set`. Errors do not repeat a value: it may be a secret."""
    flags: dict[str, str] = {}
    for item in items:
        key, separator, value = item.partition("=")
        key = key.strip()
        if not separator or not key:
            told = re.match(r"[\w.-]*", key)
            raise UsageError(
                f"--set takes key=value, got '{told[0] if told else ''}…' without '='",
                hint="--set catalog.uri=http://localhost:8181",
            )
        if flags.get(key, value) != value:
            raise UsageError(f"--set {key} is given twice with different values", hint="give it once")
        flags[key] = value
    return flags


def from_environment(environ: Mapping[str, str]) -> Iterator[Assignment]:
    """Yields the settings in FRAZIL_SECTION__KEY and in variables of other systems. Empty variables count as unset."""
    for variable, text in environ.items():
        if text and _is_ours(variable, text):
            origin = Origin(Layer.ENVIRONMENT, variable)
            written = variable.removeprefix(_PREFIX).lower().replace("__", ".")
            path = keys.resolve(written, where=str(origin), spell=variable_of)
            if keys.field_at(path) is None:
                section = keys.dotted(path[:-1])
                raise ConfigError(
                    f"{origin}: variable names have no lower-case letters, but the keys of {section} do",
                    hint=f'{variable_of(section)}=\'{{"key": "value"}}\'',
                )
            yield from _assigned(Assignment(path, text, origin, family=_PREFIX))
    for rank, (variable, name) in enumerate(ENVIRONMENT_NAMES.items(), start=FOREIGN):
        if value := environ.get(variable):
            origin = Origin(Layer.ENVIRONMENT, variable, announce=name.announce)
            yield Assignment(name.path, name.convert(value), origin, rank, family=variable.split("_")[0])


def _is_ours(variable: str, text: str) -> bool:
    if not variable.startswith(_PREFIX) or variable == CONFIG_VARIABLE:
        return False
    return _OF_KUBERNETES.fullmatch(f"{variable}={text}") is None


def variable_of(key: str) -> str:
    return _PREFIX + key.upper().replace(".", "__")


def from_file(file: FilePath, layer: Layer, shown: str) -> Iterator[Assignment]:
    for path, value, line in read_yaml(file, shown):
        written = keys.dotted(path)
        origin = Origin(layer, f"{shown}:{line}", folder=file.parent)
        if (valid := FIXED_KEYS.get(written)) is not None:
            if value is not None and value not in valid:
                raise ConfigError(f"{origin}: {written} is '{value}'", hint=f"{written}: {' or '.join(valid)}")
        elif (name := FILE_NAMES.get(written)) is not None:
            if value is not None:
                rank = FALLBACK if name.weak else OWN
                yield Assignment(name.path, name.convert(value), origin, rank, family=str(file))
        elif not _is_above_alias(written, value):
            resolved = keys.resolve(written, where=str(origin), aliases=FILE_NAMES)
            if value is not None:
                yield from _assigned(Assignment(resolved, value, origin, family=str(file)))


def _is_above_alias(written: str, value: str | None) -> bool:
    """Whether a section of another system's names is empty, such as `iceberg:` with its lines commented out."""
    return value is None and any(name.startswith(written + ".") for name in (*FILE_NAMES, *FIXED_KEYS))


def _assigned(assignment: Assignment) -> Iterator[Assignment]:
    """Yields an assignment; a map in one text (FRAZIL_SPARK__CONF='{"spark.x": "1"}', YAML or JSON) entry by entry."""
    path, origin = assignment.path, assignment.origin
    shape = keys.shape_at(path)
    if shape == "leaf":
        yield assignment
    elif shape == "map":
        for scalar in parse_yaml(assignment.value, str(origin)):
            yield replace(assignment, path=(*path, keys.dotted(scalar.path)), value=scalar.value or "")
    elif _has_dotted_names(path[:-1]):
        # A name may have dots, so that a key which is not known was taken for a part of it.
        raise keys.unknown_key((*path[:-1], *path[-1].split(".")), str(origin))
    elif _has_dotted_names(path):
        for scalar in parse_yaml(assignment.value, str(origin)):
            below = keys.resolve(keys.dotted((*path, *scalar.path)), where=str(origin))
            yield from _assigned(replace(assignment, path=below, value=scalar.value or ""))
    else:
        name = keys.dotted(path)
        raise ConfigError(
            f"{origin}: '{name}' is a section and does not take a value itself", hint=f"frazil config show {path[0]}"
        )


def _has_dotted_names(path: keys.Path) -> bool:
    """Whether this is a map of sections whose names no variable can have: FRAZIL_UPKEEP__TABLES='{"a.*": {…}}'."""
    field = keys.field_at(path)
    return field is not None and keys.has_dotted_names(field) and keys.field_at(path[:-1]) is not field


def find_project_file(start: FilePath) -> FilePath | None:
    """Finds `frazil.yaml` in this folder or a parent, as git finds its repository."""
    candidates = (folder / PROJECT_FILE for folder in (start, *start.parents))
    return next((file for file in candidates if environment.sees(file)), None)
