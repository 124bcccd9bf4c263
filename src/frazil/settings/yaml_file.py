"""Reads YAML into scalars with their places. Each stays the text that was written: `0123` is no octal number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from frazil.errors import ConfigError

_TAG = "tag:yaml.org,2002:"


class Scalar(NamedTuple):
    path: tuple[str, ...]
    value: str | None
    """None where nothing is written, or `null`."""
    line: int


def read_yaml(file: Path, where: str) -> list[Scalar]:
    """Reads the scalars of a settings file, called `where` in errors.

    Raises:
        ConfigError: it cannot be read, is no YAML (with line and column), or is no map of single values.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where}: the file is not UTF-8 text", cause=error.reason, hint="save the file as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {where}", cause=error.strerror, hint=f"ls -l {file}") from error
    return parse_yaml(text, where)


def parse_yaml(text: str, where: str) -> list[Scalar]:
    # `from None`: the errors of PyYAML quote the line, and a secret may stand in it.
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None or node.tag == f"{_TAG}null":
            return []
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{where}:1: the file does not contain a map of settings", hint="section:\n  key: value")
        return list(_scalars(node, (), where))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise _broken(where, mark.line if mark else 0, mark.column if mark else 0, error.problem) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n"), len(before.rpartition("\n")[2])
        raise _broken(where, line, column, error.reason) from None
    except RecursionError:
        raise ConfigError(
            f"{where}: an alias (*) is inside its own anchor (&)", hint="write the values without aliases"
        ) from None


def _broken(where: str, line: int, column: int, problem: str | None) -> ConfigError:
    # Of an unquoted value that begins with '*' PyYAML tells the rest as the name of an alias.
    told = re.sub(r"'[^'<]{2,}'", "'…'", problem or "")
    return ConfigError(
        f"{where}:{line + 1}:{column + 1}: invalid YAML",
        cause=told or None,
        hint="check the indentation and quotes there",
    )


def _scalars(node: yaml.MappingNode, prefix: tuple[str, ...], where: str) -> Iterator[Scalar]:
    for key, (line, value) in _entries(node, prefix, where).items():
        path = (*prefix, key)
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _scalars(value, path, where)
        elif isinstance(value, yaml.MappingNode) or value.tag == f"{_TAG}null":
            yield Scalar(path, None, line)
        elif isinstance(value, yaml.SequenceNode):
            raise ConfigError(f"{where}:{line}: '{'.'.join(path)}' is a list, but a single value is expected")
        elif not value.tag.startswith(_TAG):
            raise ConfigError(
                f"{where}:{line}: the value of '{'.'.join(path)}' begins with '!'", hint="put it in quotes"
            )
        else:
            yield Scalar(path, value.value, line)


def _entries(node: yaml.MappingNode, prefix: tuple[str, ...], where: str) -> dict[str, tuple[int, yaml.Node]]:
    """Returns the entries of a map, then those of `<<` that it does not override."""
    found: dict[str, tuple[int, yaml.Node]] = {}
    merged: list[yaml.Node] = []
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(
                f"{where}:{line}: a key must be a word, not a map or list", hint="put the value in quotes"
            )
        if key.tag == f"{_TAG}merge":
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        elif key.value in found:
            name = ".".join((*prefix, key.value))
            raise ConfigError(
                f"{where}:{line}: '{name}' is also set in line {found[key.value][0]}", hint="keep one of the two"
            )
        else:
            found[key.value] = (line, value)
    for other in merged:
        if not isinstance(other, yaml.MappingNode):
            raise ConfigError(f"{where}:{other.start_mark.line + 1}: '<<' requires a map", hint="<<: *anchor_of_a_map")
        for name, entry in _entries(other, prefix, where).items():
            found.setdefault(name, entry)
    return found
