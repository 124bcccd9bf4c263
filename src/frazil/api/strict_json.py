"""JSON of requests, without what two parsers could read in two ways: repeated names, NaN, numbers beyond 64 bits."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from frazil.documents.fields import is_nested_within
from frazil.errors import UsageError

#: More than the attributes of a document may have, which lie inside of other objects.
MAX_DEPTH = 100
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_DIGITS = 20


def parse_json(body: bytes) -> Any:
    """Returns the value of a JSON text in UTF-8.

    Raises:
        UsageError: it is no JSON, nested deeper than `MAX_DEPTH`, or has a repeated name, a number that 64 bits do not
            hold, or text that is no valid Unicode.
    """
    if not body.strip():
        raise _invalid("it is empty")
    try:
        value = json.loads(
            body.decode(), object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_constant
        )
        if not is_nested_within(value, MAX_DEPTH):
            raise _too_deep()
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _invalid("it has a lone surrogate, which is no character") from None
    except UnicodeDecodeError as error:
        raise _invalid(f"byte {error.start:,} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"{error.msg}: line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _too_deep() from None
    return value


def parse_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object of a body. Raises UsageError as `parse_json` does, or because it is none."""
    value = parse_json(body)
    if not isinstance(value, dict):
        raise UsageError("the body is no JSON object", hint='such as {"filename": "report.pdf"}')
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _invalid(f"the name '{repeated[:80]}' stands in one object more than once")
    return made


def _int(text: str) -> int:
    value = int(text) if len(text) <= _MAX_DIGITS else None
    if value is None or not -(2**63) <= value < 2**64:
        raise _invalid(f"the number {text[:_MAX_DIGITS]}… does not fit into 64 bits")
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _invalid(f"the number {text[:_MAX_DIGITS]} is too large")
    return value


def _constant(name: str) -> Any:
    raise _invalid(f"{name} is no number of JSON")


def _too_deep() -> UsageError:
    return _invalid(f"it is nested deeper than {MAX_DEPTH} levels")


def _invalid(cause: str) -> UsageError:
    return UsageError("the body is no valid JSON", cause=cause, hint="JSON as in RFC 8259, in UTF-8")
