"""JSONPath (RFC 9535). Simple paths, which most are, are evaluated without the library, which is ten times slower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonpath import JSONPath

Find = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Path:
    """A compiled JSONPath.

    Attributes:
        find: all that it finds in parsed JSON, in order.
        single: whether it can find one thing at most.
        is_plain: whether it has nothing but names, indices and `[*]`; such a path never fails.
    """

    find: Find
    single: bool
    is_plain: bool


@lru_cache(maxsize=256)
def compile_path(text: str) -> Path:
    """Compiles a path.

    Raises:
        ValueError: it is no JSONPath; the text says why.
    """
    from jsonpath import JSONPath, JSONPathEnvironment
    from jsonpath.exceptions import JSONPathError

    try:
        compiled = JSONPathEnvironment(strict=True).compile(text)
    except JSONPathError as error:
        # Not str(error): it fails for some.
        raise ValueError(_told(text, str(error.args[0]) if error.args else "it cannot be read")) from None
    except RecursionError:
        raise ValueError(_told(text, "it is too deep")) from None
    except Exception as error:  # noqa: BLE001 - numbers that are too large, and what else the library stumbles over
        raise ValueError(_told(text, f"it cannot be read ({type(error).__name__})")) from None
    assert isinstance(compiled, JSONPath)
    single = compiled.singular_query()
    steps = _steps(compiled)
    if steps is None:
        # It would parse a string as JSON.
        return Path(lambda data: [] if isinstance(data, str) else compiled.findall(data), single, is_plain=False)
    names = [step for step in steps if isinstance(step, str)]
    return Path(_along_names(names) if len(names) == len(steps) else _along(steps), single, is_plain=True)


def _told(text: str, problem: str) -> str:
    if not text.startswith("$"):
        problem = "it begins with $, which is the whole of metadata"
    return f"{text[:80]!r} is no JSONPath: {problem}"


def _steps(path: JSONPath) -> list[str | int | None] | None:
    """Returns the path as names, indices and None for `[*]`; None if it contains anything else."""
    from jsonpath.segments import JSONPathChildSegment
    from jsonpath.selectors import IndexSelector, NameSelector, WildcardSelector

    steps: list[str | int | None] = []
    for segment in path.segments:
        if type(segment) is not JSONPathChildSegment or len(segment.selectors) != 1:
            return None
        selector = segment.selectors[0]
        if type(selector) is NameSelector:
            steps.append(selector.name)
        elif type(selector) is IndexSelector:
            steps.append(selector.index)
        elif type(selector) is WildcardSelector:
            steps.append(None)
        else:
            return None
    return steps


def _along_names(names: list[str]) -> Find:
    def find(data: Any) -> list[Any]:
        for name in names:
            if type(data) is not dict or name not in data:
                return []
            data = data[name]
        return [data]

    return find


def _along(steps: list[str | int | None]) -> Find:
    def find(data: Any) -> list[Any]:
        found = [data]
        for step in steps:
            if step is None:
                found = [item for node in found for item in _children(node)]
            elif type(step) is str:
                found = [node[step] for node in found if type(node) is dict and step in node]
            else:
                assert type(step) is int
                found = [node[step] for node in found if type(node) is list and -len(node) <= step < len(node)]
        return found

    return find


def _children(node: Any) -> Any:
    if type(node) is list:
        return node
    return node.values() if type(node) is dict else ()
