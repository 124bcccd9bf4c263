"""Fields as texts, as they stand in CSV files and on the command line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from frazil.documents.model import Column

_INTEGER = re.compile(r"-?[0-9]{1,20}")
_LONG_NUMBER = re.compile(rb"(?:^|[\s:,[-])[1-9][0-9]{18}")
_BOOLEANS = {"true": True, "false": False}


def parser_of(name: str, columns: Mapping[str, Column]) -> Callable[[str], Any]:
    """Returns the function that turns the text of a field into its type.

    A text that has not the form of the type stays as it is, so that the check of the request names what is wrong.
    """
    if name in ("size_bytes", "revision"):
        return _parse_integer
    if name == "tags":
        return _parse_tags
    return _COLUMN_PARSERS.get(columns[name].type, str) if name in columns else str


def parse_json(text: bytes) -> Any:
    """Returns the value of a JSON text; whole numbers of any size stay what they are.

    Raises:
        ValueError: it is no JSON.
    """
    if _LONG_NUMBER.search(text):
        return json.loads(text, parse_constant=_refuse_constant)
    return orjson.loads(text)


def json_text(value: Any) -> str:
    """Returns JSON with sorted keys and without spaces; what JSON has not, as text."""
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_SORT_KEYS | orjson.OPT_UTC_Z).decode()
    except TypeError:  # whole numbers of more than 64 bits, keys that are no texts, lone surrogates
        return json.dumps(value, default=_plain, sort_keys=True, separators=(",", ":"))


def plain_number(value: float) -> Any:
    """Returns whole numbers as int, as tables that cannot hold integers beside nulls have them, and NaN as None."""
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() else value


def _parse_integer(text: str) -> Any:
    return int(text) if _INTEGER.fullmatch(text) else text


def _parse_double(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _parse_boolean(text: str) -> Any:
    return _BOOLEANS.get(text.lower(), text)


def _parse_tags(text: str) -> Any:
    try:
        return parse_json(text.encode())
    except ValueError:
        return text


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_COLUMN_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "long": _parse_integer,
    "double": _parse_double,
    "boolean": _parse_boolean,
}
