"""JSONPaths that DuckDB does not support, evaluated row by row in bounded time: a short path can cause endless work."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from frazil.errors import UsageError

if TYPE_CHECKING:
    import jsonpath

HINT = "exif.Model, labels[*].Name, or a JSONPath such as $.exif.Model"
#: Values that a path may lead to in one row.
MAX_VALUES = 10_000
#: What runs a regular expression, which can take for ever and cannot be ended.
_MATCHING = re.compile(r"\b(?:match|search)\s*\(|=~")


def compile_path(text: str) -> jsonpath.JSONPath | jsonpath.CompoundJSONPath:
    """Reads a JSONPath.

    Raises:
        UsageError: it is none.
    """
    import jsonpath

    try:
        return jsonpath.compile(text)
    except (jsonpath.JSONPathError, RecursionError, ValueError) as error:
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{text!r} is no JSONPath", cause=told, hint=HINT) from None


def require_cheap(text: str) -> None:
    """Refuses what costs too much for a server that answers others too.

    Raises:
        UsageError: the path has a regular expression, or searches all of a document more than once.
    """
    if _MATCHING.search(text):
        raise UsageError(f"{text!r} has a regular expression", hint="==, <, > in a filter; or NAME~PART on the result")
    if text.count("..") > 1:
        raise UsageError(f"{text!r} has '..' more than once", hint="name the way to the value, such as $.exif.Model")


class Clock:
    """The seconds that a path may take in one search, however many parts of a table it looks into. None: any."""

    def __init__(self, seconds: float | None) -> None:
        self._left = seconds
        self._until: float | None = None

    def __enter__(self) -> Clock:
        self._until = None if self._left is None else monotonic() + self._left
        return self

    def __exit__(self, *_: object) -> None:
        if self._until is not None:
            self._left = self._until - monotonic()

    def check(self) -> None:
        if self._until is not None and monotonic() > self._until:
            raise UsageError(
                "the search takes too long",
                cause="a JSONPath with filters is looked up row by row",
                hint="more conditions, a plain path such as exif.Model, or frazil content search",
            )


class _Tick:
    """A step of a path that leads nowhere else, and looks at the clock."""

    selectors = ()

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def resolve(self, nodes: Iterable[Any]) -> Iterator[Any]:
        for node in nodes:
            self._clock.check()
            yield node


def find_values(text: str, documents: Any, clock: Clock) -> tuple[Any, Any]:
    """What a path leads to in some JSON texts: numbers of rows, and values as JSON.

    Raises:
        UsageError: it takes too long, leads to too much, or compares what cannot be compared.
    """
    import jsonpath
    import orjson

    path = compile_path(text)
    _watch_steps(path, clock)
    rows, values = [], []
    with clock:
        for number, document in enumerate(documents.to_pylist()):
            clock.check()
            if document is None:
                continue
            try:
                data = orjson.loads(document)
            except ValueError:
                continue
            if isinstance(data, str):
                continue  # which the library would take for JSON
            try:
                for count, match in enumerate(path.finditer(data)):
                    if count >= MAX_VALUES:
                        raise UsageError(f"{text!r} leads to more than {MAX_VALUES:,} values of one object", hint=HINT)
                    rows.append(number)
                    values.append(json.dumps(match.obj, ensure_ascii=False))
            except (jsonpath.JSONPathError, RecursionError) as error:
                told = (str(error).splitlines() or [type(error).__name__])[0]
                raise UsageError(f"{text!r} cannot be looked up", cause=told, hint=HINT) from None
    return pa.array(rows, pa.int64()), pa.array(values, pa.string())


def _watch_steps(path: jsonpath.JSONPath | jsonpath.CompoundJSONPath, clock: Clock) -> None:
    """Has each step of a path, and of those in its filters, look at the clock."""
    from jsonpath import CompoundJSONPath
    from jsonpath.filter import FilterQuery, walk
    from jsonpath.selectors import Filter

    if isinstance(path, CompoundJSONPath):
        for one in (path.path, *(other for _, other in path.paths)):
            _watch_steps(one, clock)
        return
    selectors = [selector for segment in path.segments for selector in segment.selectors]
    inner = [walk(selector.expression) for selector in selectors if isinstance(selector, Filter)]
    queries = [node.path for nodes in inner for node in nodes if isinstance(node, FilterQuery)]
    for one in {id(found): found for found in (path, *queries)}.values():
        steps: list[Any] = [step for segment in one.segments for step in (segment, _Tick(clock))]
        one.segments = tuple(steps)
