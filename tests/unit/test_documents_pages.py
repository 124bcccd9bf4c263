"""The pages about documents name what the code has: every field, and every filter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from frazil.cli import docs
from frazil.documents.fields import CLOCK_TOLERANCE, MAX_ATTRIBUTES_BYTES, MAX_TAG, MAX_TAGS, MAX_TEXT
from frazil.documents.model import COLUMN_TYPES, FIELD_NAMES
from frazil.documents.store import SORT_FIELDS
from frazil.documents.transfer import FORMATS
from frazil.documents.transfer.imports import SHOWN

PAGE = (Path(__file__).parents[2] / "docs" / "documents.md").read_text()


def rows_after(head: str) -> list[list[str]]:
    """The cells of a table that begins with these heads."""
    lines = PAGE[PAGE.index(f"| {head}") :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_field_is_explained_in_its_order():
    assert tuple(row[0].strip("`") for row in rows_after("field | type")) == FIELD_NAMES


@pytest.mark.parametrize("name", ["list", "export"])
def test_every_filter_is_explained(name: str):
    command = typer.main.get_command(docs.app).commands[name]  # type: ignore[attr-defined]
    explained = set(re.findall(r"--[a-z-]+", "".join(row[0] for row in rows_after("option of `list` and `export`"))))
    others = {
        "--sort",
        "--ascending",
        "--descending",
        "--limit",
        "--cursor",
        "--all",
        "--format",
        "--history",
        "--force",
    }
    common = {"--output", "--config", "--set", "--verbose", "--help", "-o", "-v", "-h", "--via", "--explain"}
    options = {o for p in command.params for o in [*p.opts, *p.secondary_opts] if o.startswith("-")}
    assert options - others - common == explained


def test_formats_orders_and_types_are_named():
    assert [row[0].lower() for row in rows_after("format | on export")] == list(FORMATS)
    for name in (*SORT_FIELDS, *COLUMN_TYPES):
        assert f"`{name}`" in PAGE


def test_limits_are_those_of_the_code():
    assert (MAX_TEXT, MAX_TAGS, MAX_TAG, MAX_ATTRIBUTES_BYTES) == (1024, 256, 256, 64 * 1024)
    assert CLOCK_TOLERANCE.total_seconds() == 300
    assert SHOWN == 20
    for words in ("at most 1,024 bytes", "up to 256 names with texts of up to 256 bytes", "up to 64 KiB",
                  "at most\nfive minutes ahead", "the first twenty with"):  # fmt: skip
        assert words in PAGE
