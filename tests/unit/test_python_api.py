"""`import frazil`: quick, complete, and all of it described in docs/python.md."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import frazil
from frazil import errors

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
CLASSES = (
    frazil.Lake, frazil.Topic, frazil.Subscription, frazil.Table, frazil.Content, frazil.Backups, frazil.Replicas
)  # fmt: skip
HEAVY = ("pyarrow", "pyiceberg", "pyspark", "pydantic", "duckdb", "sqlalchemy", "numpy", "structlog", "boto3")

_IMPORT = """
import sys, time
began = time.perf_counter()
import frazil
seconds = time.perf_counter() - began
print(seconds, *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_the_import_is_quick_and_loads_no_library():
    seconds = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True)
        took, *modules = done.stdout.split()
        seconds.append(float(took))
        assert set(modules).isdisjoint(HEAVY)
    assert min(seconds) <= 0.1


def test_every_public_name_can_be_imported():
    for name in frazil.__all__:
        assert getattr(frazil, name) is not None
    assert dir(frazil) == sorted(frazil.__all__)
    assert frazil.extract.extractor is importlib.import_module("frazil.extract").extractor
    with pytest.raises(AttributeError):
        frazil.nothing  # noqa: B018


def test_all_errors_are_offered_by_name():
    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert tree <= set(frazil.__all__)
    assert issubclass(frazil.OffsetGoneError, frazil.NotFoundError)


def test_the_page_describes_every_public_name_and_no_other():
    text = PAGE.read_text()
    (reference,) = re.findall(r"<!-- reference -->\n(.*)<!-- end of reference -->", text, re.DOTALL)
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^### |\Z)", reference, re.DOTALL | re.MULTILINE))
    named = {title: _first_cells(section) for title, section in sections.items()}
    errors_named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`\w+Error.*?) \|", text, re.MULTILINE))))
    errors_named |= {"FrazilError", "InterruptedByUser"}
    assert named["frazil"] | errors_named == set(frazil.__all__)
    for described in CLASSES:
        public = {name for name in _members(described) if not name.startswith("_")}
        assert named[described.__name__] == public, described


def _first_cells(section: str) -> set[str]:
    cells = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)", cell)}


def _members(described: type) -> set[str]:
    """Methods, properties, and the attributes that the docstring lists."""
    listed = re.findall(r"^    (\w+):", inspect.getdoc(described).partition("Attributes:\n")[2], re.MULTILINE)
    return {*vars(described), *listed}


def test_signatures_in_the_reference_are_those_of_the_code():
    text = PAGE.read_text()
    for described in CLASSES:
        (section,) = re.findall(
            rf"^### `{described.__name__}`\n(.*?)(?=^### |^<!-- end)", text, re.DOTALL | re.MULTILINE
        )
        for name, shown in re.findall(r"^\| `(\w+)\(([^`]*)\)`", section, re.MULTILINE):
            parameters = list(inspect.signature(getattr(described, name)).parameters)[1:]
            if "…conditions" in shown:
                continue
            assert re.findall(r"(?:^|, )\*?(\w+)(?:=[^,]+)?", shown) == parameters, (described, name)
