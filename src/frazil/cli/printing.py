"""Text for people, JSON for programs; data on stdout, everything else on stderr."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def to_json(value: Any) -> Any:
    """A value that json.dumps does not know, as JSON."""
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (decimal.Decimal, uuid.UUID, Path)):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def to_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        return json.dumps(value, default=to_json, ensure_ascii=False)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


@dataclass(frozen=True)
class Printer:
    json_output: bool

    def rows(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None, none: str = "nothing"
    ) -> None:
        """A table as text, or a list of objects as JSON."""
        listed = [list(row) for row in rows]
        if self.json_output:
            self.json([dict(zip(columns, row, strict=True)) for row in listed])
        elif not listed:
            print(f"({none})")
        else:
            print_table(columns, listed, title=title)

    def record(self, record: Mapping[str, Any]) -> None:
        """One thing with its fields."""
        if self.json_output:
            self.json(record)
            return
        width = max(map(len, record), default=0)
        for key, value in record.items():
            print(f"{key:<{width}}  {to_text(value)}")

    def json(self, value: Any) -> None:
        print(json.dumps(value, default=to_json, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))

    @staticmethod
    def note(text: str) -> None:
        print(text, file=sys.stderr)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """On a terminal with rules and fitted to its width; into a pipe plain, and never cut."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(rich_table(columns, rows, title=title))
    else:
        print(plain_table(columns, rows))


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [list(columns), *([to_text(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(to_text(value)) for value in row))
    return table
