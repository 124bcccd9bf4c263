"""The class names of the model, and broader names above them.

`classes.txt` has the 1,000 classes of ImageNet in the order of the model's answers, ten in a line, in everyday words.
`broader.txt` says which of them are cats, cars or food, so that who searches for `cat` finds a tabby: names, ranges of
names in that order (`tabby cat .. Egyptian cat`), or broader names of the lines above.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def class_names() -> tuple[str, ...]:
    """Returns the class names in the order of the model's outputs."""
    return tuple(name for line in _lines("classes.txt") for name in line.split(", "))


@cache
def broader_names() -> dict[str, tuple[int, ...]]:
    """Returns broader names with the numbers of their classes."""
    return parse_groups(_lines("broader.txt"), class_names())


def parse_groups(lines: list[str], classes: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Parses lines as in `broader.txt`.

    Raises:
        KeyError: a line names what is neither a class nor a broader name above it.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    groups: dict[str, tuple[int, ...]] = {}
    for line in lines:
        name, _, members = line.partition(": ")
        found: set[int] = set()
        for member in members.split(", "):
            first, _, last = member.partition(" .. ")
            if last:
                found.update(range(numbers[first], numbers[last] + 1))
            else:
                found.update(groups[member] if member in groups else [numbers[member]])
        groups[name] = tuple(sorted(found))
    return groups


def _lines(file: str) -> list[str]:
    text = (files(__package__) / file).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line]
