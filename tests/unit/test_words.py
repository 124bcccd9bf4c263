"""Names of modules, classes and functions use the words of the field; those that were replaced do not come back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import frazil

ROOT = Path(frazil.__file__).parent
LIST = Path(__file__).parents[1] / "data" / "banned_words.txt"
#: Rooms whose names were revised. Add a room here once it passes; none is removed.
REVISED = ("api", "log", "settings", "topics", "upkeep")
#: Rooms whose names are still to be revised.
TO_DO = ("backup", "catalogs", "cli", "content", "demo", "documents", "extract", "lake", "observe", "query", "replica",
         "spark", "storage", "supervise", "tables")  # fmt: skip


def banned() -> dict[str, dict[str, str]]:
    """Returns the replaced names by kind (module, name), each with its replacement."""
    found: dict[str, dict[str, str]] = {"module": {}, "name": {}}
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            kind, old, new = line.split()
            found[kind][old] = new
    return found


def files(room: str) -> list[Path]:
    folder = ROOT / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [ROOT / f"{room}.py"]


def definitions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yields the names of classes, functions and methods, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno


@pytest.mark.parametrize("room", REVISED)
def test_no_replaced_name_comes_back(room: str) -> None:
    words = banned()
    found = []
    for file in files(room):
        place = file.relative_to(ROOT).as_posix()
        found += [f"{place}: {part}" for part in Path(place).with_suffix("").parts[1:] if part in words["module"]]
        for name, line in definitions(ast.parse(file.read_text())):
            new = words["name"].get(name.lstrip("_"))
            if new is not None:
                found.append(f"{place}:{line}: {name}, better: {new}")
    assert not found, "\n".join(found)


def test_every_room_is_either_revised_or_to_do() -> None:
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    listed = {*REVISED, *TO_DO}
    assert rooms <= listed, f"add to a list: {sorted(rooms - listed)}"
    assert not set(REVISED) & set(TO_DO)
