"""Conditions such as `NAME=VALUE` on a column of the table or on a path inside `metadata`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.buckets import require_text
from frazil.content.query.column_tests import Test, contains, evaluate_test, filled
from frazil.content.query.json_values import Path, Values
from frazil.errors import UsageError
from frazil.tables.reading.column_blocks import Block

Sign = Literal["<=", ">=", "!=", "=", "<", ">", "~"]

_HINT = "NAME=VALUE with a column or a path; also <, <=, >, >=, != and ~ (contains); NAME alone: it has a value"
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal, "!=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


@dataclass(frozen=True)
class FieldCondition:
    """A condition on one value.

    Attributes:
        name: a column, or a path.
        sign: how it is compared; None: that it has a value is enough.
        value: with what.
        seconds: that a path may take where it is looked up row by row; None: any.
    """

    name: str
    sign: Sign | None = None
    value: str = ""
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> FieldCondition:
        """Reads `NAME`, `NAME=VALUE`, `NAME>=VALUE` …; signs in brackets and quotes belong to a JSONPath.

        Raises:
            UsageError: it has no name, or the path is none.
        """
        require_text(text, "field")
        at, sign = _split(text)
        name = text[:at].strip()
        if not name:
            raise UsageError(f"{text!r} names no column and no path", hint=_HINT)
        found = cls(name, sign, text[at + len(sign) :].strip() if sign else "")
        if sign == "~" and not found.value:
            raise UsageError(f"{text!r} does not say what it shall contain", hint=_HINT)
        return found

    def bind(self, schema: pa.Schema) -> ColumnCondition | JsonCondition:
        """The same for the columns that a table has.

        Raises:
            UsageError: there is no such column, or it cannot have such a value.
        """
        name, _, rest = self.name.partition(".")
        if self.name in schema.names:
            return ColumnCondition.of(self, self.name, "", schema.field(self.name).type)
        if rest and name in schema.names and pa.types.is_map(schema.field(name).type):
            return ColumnCondition.of(self, name, rest, schema.field(name).type)
        if self.name.startswith("$") or rest or "[" in self.name:
            return JsonCondition(self, Path.parse(self.name, self.seconds))
        columns = ", ".join(n for n in schema.names if not n.startswith("frazil_"))
        raise UsageError(
            f"there is no column {self.name!r}",
            cause=f"there are: {columns}",
            hint=f"a column, or a path that begins with an extractor, such as exif.{self.name}",
        )


@dataclass(frozen=True)
class ColumnCondition:
    """A condition on a column; of a map, on the value under a key, and of a struct there, on one of its fields."""

    column: str
    keys: tuple[str, ...]
    test: Test | None
    negated: bool

    @classmethod
    def of(cls, field: FieldCondition, column: str, rest: str, kind: pa.DataType) -> ColumnCondition:
        keys: tuple[str, ...] = ()
        if rest:
            kind, keys = kind.item_type, (rest,)
            if pa.types.is_struct(kind):
                key, _, inner = rest.rpartition(".")
                names = [kind.field(i).name for i in range(kind.num_fields)]
                if not key or inner not in names:
                    raise UsageError(
                        f"{field.name!r} does not say which value of {column}",
                        hint=" or ".join(f"{column}.NAME.{name}" for name in names),
                    )
                kind, keys = kind.field(inner).type, (key, inner)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            kind = kind.value_type
        return cls(column, keys, _test(field, kind), field.sign == "!=")

    def holds(self, column: Any) -> Any:
        """Which rows it is true of."""
        for number, key in enumerate(self.keys):
            if number == 0:
                column = pc.map_lookup(column, query_key=pa.scalar(key, column.type.key_type), occurrence="last")
            else:
                column = pc.struct_field(column, key)
        there = filled(column)
        if self.test is None:
            return there
        return there & ~evaluate_test(column, self.test) if self.negated else evaluate_test(column, self.test)


@dataclass(frozen=True)
class JsonCondition:
    """A condition on what a path leads to; of several values, any counts."""

    field: FieldCondition
    path: Path

    def of(self, block: Block, at: Any) -> Any:
        """The rows that it is true of, out of some."""
        truths = np.zeros(len(at), bool)
        kind = ("inside", self.path.text)
        for inside, local, found in block.derived("metadata", kind, self.path.of, lambda made: made.size, at):
            truths[inside] = self._holds(found)[local]
        return at[truths]

    def _holds(self, found: Values) -> Any:
        truths = np.zeros(found.count, bool)
        if found.texts:
            good = np.array([self._is_match(text) for text in found.texts], bool)[found.codes]
            truths[found.rows[good]] = True
            if self.field.sign == "!=":
                truths[found.rows[~good]] = False
        return truths

    def _is_match(self, text: str) -> bool:
        if text == "null":
            return False
        sign, wanted = self.field.sign, self.field.value
        if sign is None:
            return True
        # Only strings are decoded: numbers may have any number of digits, and lists any depth.
        shown = json.loads(text) if text.startswith('"') else text
        if sign == "~":
            return wanted.lower() in shown.lower()
        ours, theirs = _number(shown), _number(wanted)
        if ours is None or theirs is None:
            return _compare(sign, shown, wanted)
        return _compare(sign, ours, theirs)


def _compare(sign: str, ours: Any, theirs: Any) -> bool:
    same, less = bool(ours == theirs), bool(ours < theirs)
    return {"=": same, "!=": not same, "<": less, "<=": less or same, ">": not (less or same), ">=": not less}[sign]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _split(text: str) -> tuple[int, Sign | None]:
    """Where the sign is, outside of brackets and quotes."""
    depth, quote = 0, ""
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and depth:
            quote = char
        elif char in "[(":
            depth += 1
        elif char in "])":
            depth -= 1
        elif not depth:
            for sign in get_args(Sign):
                if text.startswith(sign, at):
                    return at, sign
    return len(text), None


def _test(field: FieldCondition, kind: pa.DataType) -> Test | None:
    if field.sign is None:
        return None
    if field.sign == "~":
        if pa.types.is_nested(kind) or _is_binary(kind):
            raise UsageError(f"column {field.name!r} has values of type {kind}, which contain no text", hint=_HINT)
        part = contains(field.value)
        return lambda values: part(values if pa.types.is_string(values.type) else values.cast(pa.string()))
    wanted = _typed(field, kind)
    compare = _COMPARED[field.sign]
    return lambda values: compare(values, wanted if values.type == wanted.type else wanted.cast(values.type))


def _typed(field: FieldCondition, kind: pa.DataType) -> Any:
    """The value in the type of the column."""
    text = field.value
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    try:
        if pa.types.is_timestamp(kind):
            return pa.scalar(_time(text, aware=kind.tz is not None), kind)
        if _is_binary(kind):
            return pa.scalar(bytes.fromhex(text.replace("-", "")), kind)
        return pa.scalar(text, pa.string()).cast(kind)
    except (pa.ArrowException, ValueError, OverflowError):
        raise UsageError(
            f"column {field.name!r} has values of type {kind}, and {text!r} is none",
            hint=f"{field.name} alone: it has any value",
        ) from None


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _time(text: str, *, aware: bool) -> datetime:
    time = datetime.fromisoformat(text)
    if aware:
        return time if time.tzinfo else time.replace(tzinfo=UTC)
    return time.astimezone(UTC).replace(tzinfo=None) if time.tzinfo else time
