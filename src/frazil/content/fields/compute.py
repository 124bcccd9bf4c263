"""Computes custom columns from stored JSON: a pure function over Arrow. Reads no object."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from frazil.content.fields.casting import Cast, Misfit, caster, format_value
from frazil.content.fields.paths import compile_path
from frazil.content.fields.spec import Fields, FieldSpec
from frazil.content.fields.types import array_of

#: From parsed JSON to the value of a column; raises Misfit.
_Value = Callable[[Any], Any]
#: Maximum characters of an error.
_MAX_ERROR = 200


@dataclass(frozen=True)
class Computed:
    """The computed columns, one row per document.

    Attributes:
        columns: by the name of the field.
        errors: of each row, the fields that could not take their value, and why; None: none.
        marks: what `frazil_fields` says of rows that are computed so.
    """

    columns: dict[str, pa.Array]
    errors: list[dict[str, str] | None]
    marks: list[str]


def compute(metadata: pa.ChunkedArray | pa.Array, fields: Fields) -> Computed:
    """Computes the columns of all fields. A value that does not fit becomes null with an error; no JSON content raises.

    Args:
        metadata: JSON texts; null: nothing is known.
        fields: what is to be computed.
    """
    texts = metadata.to_pylist()
    errors: list[dict[str, str] | None] = [None] * len(texts)
    values: list[list[Any]] = [[None] * len(texts) for _ in fields]
    makers = [(spec.name, _maker(spec, fields.cast), column) for spec, column in zip(fields, values, strict=True)]
    for row, text in enumerate(texts):
        if text is None or not makers:
            continue
        try:
            data = orjson.loads(text)
        except ValueError:
            data, why = _loaded(text)
            if why is not None:
                errors[row] = {name: why for name, _, _ in makers}
                continue
        for name, make, column in makers:
            try:
                column[row] = make(data)
            except _Element as partly:
                column[row] = partly.good
                errors[row] = {**(errors[row] or {}), name: str(partly)[:_MAX_ERROR]}
            except Misfit as misfit:
                errors[row] = {**(errors[row] or {}), name: str(misfit)[:_MAX_ERROR]}
    columns = {spec.name: array_of(column, spec.arrow) for spec, column in zip(fields, values, strict=True)}
    return Computed(columns, errors, fields.marks)


class _Element(Misfit):
    """Raised if some elements of an array do not fit; those that do are kept."""

    def __init__(self, told: str, good: list[Any]) -> None:
        super().__init__(told)
        self.good = good


def _maker(spec: FieldSpec, cast: Cast) -> _Value:
    path = compile_path(spec.jpath)
    kind = spec.kind
    find = _careful(path.find) if not path.is_plain else path.find
    if kind.element is not None:
        return _list_of(find, caster(kind.element, cast), need_list=cast == "strict" and path.single)
    to = caster(kind, cast)

    def one(data: Any) -> Any:
        found = find(data)
        return None if not found or found[0] is None else to(found[0])

    return one


def _list_of(find: Callable[[Any], list[Any]], to: _Value, *, need_list: bool) -> _Value:
    def many(data: Any) -> list[Any] | None:
        found = find(data)
        if len(found) == 1:
            if type(found[0]) is list:
                found = found[0]
            elif found[0] is None:
                return None
            elif need_list:
                raise Misfit(f"{format_value(found[0])} is not an array")
        elif not found:
            return None
        good: list[Any] = []
        told = None
        for place, value in enumerate(found):
            try:
                good.append(None if value is None else to(value))
            except Misfit as misfit:
                good.append(None)
                told = told or f"[{place}]: {misfit}"
        if told is not None:
            raise _Element(told, good)
        return good

    return many


def _careful(find: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
    """Evaluates a path by the library, whose filters and `..` may fail on deep data or unknown types."""

    def found(data: Any) -> list[Any]:
        try:
            return find(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, only this value of this row is concerned
            raise Misfit(f"the path cannot be evaluated: {type(error).__name__}") from None

    return found


def _loaded(text: str) -> tuple[Any, str | None]:
    """Parses JSON that the fast parser refuses, such as NaN or a lone surrogate; or returns why it is invalid."""
    try:
        return json.loads(text), None
    except (ValueError, RecursionError):
        return None, "metadata is no JSON that can be read"
