"""Finds fields in encoded Avro records, without decoding the records.

A record is skipped by regular expressions made from the writer's schema: a tenth of a microsecond per field, and safe
on damaged bytes, where PyIceberg's compiled decoder reads beyond the end of its buffer. The lengths of lists are
measured in a first record; records that have the same ones then match at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Protocol

from frazil.tables.metadata.avro import long, read_long

#: A type as a schema has it: a name, a union as a list, or a dictionary.
Kind = Any

_NUMBER = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
#: Longer texts, whose length takes two bytes, are no part of an expression. Common lengths of bounds come first.
_LENGTHS = sorted(range(64), key=lambda size: (size not in (8, 4, 16), size))
_TEXT = b"(?>%s)" % b"|".join(rb"\x%02x.{%d}" % (2 * size, size) for size in _LENGTHS)
_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
#: Expressions that are kept for one run of fields, one per combination of lengths.
_KEPT = 8
#: Items of a list that an expression repeats at most.
_MOST_ITEMS = 10_000
#: Stands for the length of a list that no expression describes.
_ODD = -1


class NotNullError(Exception):
    """A field has a value that must be null."""


class RecordLayout:
    """The places of some fields in the records of one schema.

    Attributes:
        ids: of those fields that the schema has, in the order of the file.
        kinds: their types by id, without references to named types.
    """

    def __init__(self, schema: bytes, fields: tuple[int, ...], nulls: tuple[int, ...], inner: int) -> None:
        self.kinds: dict[int, Kind] = {}
        self._steps: list[tuple[bool, _Run]] = []
        run: list[_Type] = []
        for number, kind in _flatten(resolve_names(json.loads(schema)), inner):
            if number not in fields or number in self.kinds:
                run.append(_MustBeNull(kind) if number in nulls else _type_of(kind))
                continue
            self._steps += [(False, _Run(run))] if run else []
            self._steps.append((True, _Run([_type_of(kind)])))
            self.kinds[number] = kind
            run = []
        self._steps += [(False, _Run(run))] if run else []
        self.ids = tuple(self.kinds)

    def find_records(self, data: bytes, count: int) -> Iterator[list[int]]:
        """Yields for each record of a block: its begin, begin and end of each field of `ids`, and its end.

        Raises:
            ValueError: the block holds other records than this many of the schema.
            NotNullError: a field that must be null has a value.
        """
        at = 0
        steps = self._steps
        for _ in range(count):
            places = [at]
            for is_found, run in steps:
                end = run.skip(data, at)
                if is_found:
                    places += (at, end)
                at = end
            places.append(at)
            yield places
        if at != len(data):
            raise ValueError("a block has other records than it says")


@lru_cache(maxsize=256)
def layout_of(schema: bytes, fields: tuple[int, ...], nulls: tuple[int, ...] = (), inner: int = -1) -> RecordLayout:
    """Returns where fields are in records of a schema.

    Args:
        schema: as it stands in the file's head.
        fields: ids of those to find, of the record and of its inner record.
        nulls: ids of those that must be null.
        inner: id of the field that is the inner record.

    Raises:
        ValueError, KeyError, TypeError: this is no schema of records.
    """
    return RecordLayout(schema, fields, nulls, inner)


def resolve_names(schema: Kind) -> Kind:
    """Returns a schema in which each type stands in full: Avro lets a named one be told once and then referred to."""
    return _resolve(schema, {})


def _resolve(kind: Kind, names: dict[str, Kind]) -> Kind:
    if isinstance(kind, str):
        return kind if kind in _PRIMITIVE else names[kind]
    if isinstance(kind, list):
        return [_resolve(branch, names) for branch in kind]
    if not isinstance(kind["type"], str) or kind.keys() == {"type"}:  # DuckDB writes {"type": "int"} for "int"
        return _resolve(kind["type"], names)
    found = dict(kind)
    if kind["type"] == "record":
        found["fields"] = [{**field, "type": _resolve(field["type"], names)} for field in kind["fields"]]
    for part in ("items", "values"):
        if part in kind:
            found[part] = _resolve(kind[part], names)
    if "name" in kind:
        names[kind["name"]] = names[f"{kind.get('namespace', '')}.{kind['name']}"] = found
    return found


def _flatten(schema: Kind, inner: int) -> Iterator[tuple[int, Kind]]:
    """Yields the fields of a record by id, with those of the inner record in its place."""
    for field in schema["fields"]:
        number = field.get("field-id", -1)
        if number == inner and inner >= 0:
            yield from ((part.get("field-id", -1), part["type"]) for part in field["type"]["fields"])
        else:
            yield number, field["type"]


class _Run:
    """Adjacent fields, which are skipped together."""

    def __init__(self, types: list[_Type]) -> None:
        self._types = tuple(types)
        self._patterns: dict[tuple[int, ...], re.Pattern[bytes]] = {}
        self._last: list[int] | None = None
        self._is_text = len(types) == 1 and isinstance(types[0], _Text)

    def skip(self, data: bytes, at: int) -> int:
        """Returns where these fields end."""
        if self._is_text:
            return _skip_text(data, at)
        for pattern in self._patterns.values():
            if match := pattern.match(data, at):
                return match.end()
        counts: list[int] = []
        for kind in self._types:
            at = kind.skip(data, at, counts)
        # An expression takes a millisecond to make: not for lengths that come once.
        if counts == self._last and _ODD not in counts and tuple(counts) not in self._patterns:
            rest = iter(counts)
            pattern = re.compile(b"".join(kind.express(rest) for kind in self._types), re.DOTALL)
            recent = list(self._patterns.items())[: _KEPT - 1]
            self._patterns = {tuple(counts): pattern, **dict(recent)}
        self._last = counts
        return at


class _Type(Protocol):
    """A type of values: where one ends, and an expression for those like it."""

    #: Whether values contain lists, whose lengths `skip` notes and `express` takes in the same order.
    has_lists: bool

    def skip(self, data: bytes, at: int, counts: list[int]) -> int: ...
    def express(self, counts: Iterator[int]) -> bytes: ...


class _Number:
    has_lists = False

    def skip(self, data: bytes, at: int, counts: list[int]) -> int:
        return read_long(data, at)[1]

    def express(self, counts: Iterator[int]) -> bytes:
        return _NUMBER


class _Text:
    has_lists = False

    def skip(self, data: bytes, at: int, counts: list[int]) -> int:
        return _skip_text(data, at)

    def express(self, counts: Iterator[int]) -> bytes:
        return _TEXT


class _Fixed:
    has_lists = False

    def __init__(self, size: int) -> None:
        self.size = size

    def skip(self, data: bytes, at: int, counts: list[int]) -> int:
        if at + self.size > len(data):
            raise ValueError("a value goes beyond the end")
        return at + self.size

    def express(self, counts: Iterator[int]) -> bytes:
        return b".{%d}" % self.size


class _Record:
    def __init__(self, parts: list[_Type]) -> None:
        self._parts = parts
        self.has_lists = any(part.has_lists for part in parts)

    def skip(self, data: bytes, at: int, counts: list[int]) -> int:
        for part in self._parts:
            at = part.skip(data, at, counts)
        return at

    def express(self, counts: Iterator[int]) -> bytes:
        return b"".join([part.express(counts) for part in self._parts])


class _Union:
    def __init__(self, branches: list[_Type]) -> None:
        self._branches = branches
        self.has_lists = any(branch.has_lists for branch in branches)

    def skip(self, data: bytes, at: int, counts: list[int]) -> int:
        branch, at = read_long(data, at)
        if not 0 <= branch < len(self._branches):
            raise ValueError("a union has no such branch")
        if self.has_lists:
            counts.append(branch)
        return self._branches[branch].skip(data, at, counts)

    def express(self, counts: Iterator[int]) -> bytes:
        taken = [next(counts)] if self.has_lists else range(len(self._branches))
        return b"(?>%s)" % b"|".join([re.escape(long(i)) + self._branches[i].express(counts) for i in taken])


class _Items:
    """A list, or a map as a list of pairs."""

    has_lists = True

    def __init__(self, item: _Type) -> None:
        self._item = item
        self._expression = None if item.has_lists else item.express(iter(()))

    def skip(self, data: bytes, at: int, counts: list[int]) -> int:
        count, at = read_long(data, at)
        place, blocks = len(counts), 0
        counts.append(count if count <= (0 if self._expression is None else _MOST_ITEMS) else _ODD)
        while count:
            at = _skip_text(data, at) if count < 0 else self._skip_many(data, at, count)
            count, at = read_long(data, at)
            blocks += 1
        if blocks > 1 or counts[place] < 0:
            counts[place] = _ODD
        return at

    def _skip_many(self, data: bytes, at: int, count: int) -> int:
        if self._expression is not None and count <= _MOST_ITEMS:
            match = _repeat(self._expression, count).match(data, at)
            if match:
                return match.end()
        for _ in range(count):
            end = self._item.skip(data, at, [])
            if end == at:
                raise ValueError("a list has items without bytes")
            at = end
        return at

    def express(self, counts: Iterator[int]) -> bytes:
        count = next(counts)
        return rb"%s(?:%s){%d}\x00" % (re.escape(long(count)), self._expression, count) if count else rb"\x00"


class _MustBeNull(_Union):
    def __init__(self, kind: Kind) -> None:
        if not isinstance(kind, list) or "null" not in kind:
            raise NotNullError
        super().__init__([_type_of(branch) for branch in kind])
        self.has_lists = False
        self._null = kind.index("null")

    def skip(self, data: bytes, at: int, counts: list[int]) -> int:
        branch, at = read_long(data, at)
        if branch != self._null:
            raise NotNullError
        return at

    def express(self, counts: Iterator[int]) -> bytes:
        return re.escape(long(self._null))


@lru_cache(maxsize=1024)
def _repeat(expression: bytes, count: int) -> re.Pattern[bytes]:
    return re.compile(b"(?:%s){%d}" % (expression, count), re.DOTALL)


def _skip_text(data: bytes, at: int) -> int:
    size, at = read_long(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise ValueError("a value goes beyond the end")
    return end


_PRIMITIVE = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


def _type_of(kind: Kind) -> _Type:
    if isinstance(kind, list):
        return _Union([_type_of(branch) for branch in kind])
    name = kind if isinstance(kind, str) else kind["type"]
    if name in ("int", "long", "enum"):
        return _Number()
    if name in ("bytes", "string"):
        return _Text()
    if name == "record":
        return _Record([_type_of(field["type"]) for field in kind["fields"]])
    if name == "array":
        return _Items(_type_of(kind["items"]))
    if name == "map":
        return _Items(_Record([_Text(), _type_of(kind["values"])]))
    return _Fixed(kind["size"] if name == "fixed" else _WIDTHS[name])
