"""Text for people, JSON for programs; data on stdout, everything else on stderr."""

from __future__ import annotations

import base64
import datetime
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def to_json(value: Any) -> Any:
    """A value in what JSON has; text where it has nothing like it, null for numbers that are none."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if type(value) in (list, tuple):  # Arrow's intervals are tuples too, but of another type
        return [to_json(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value)


def json_text(value: Any, *, ascii_only: bool = False, indent: int | None = None) -> str:
    return json.dumps(to_json(value), allow_nan=False, ensure_ascii=ascii_only, indent=indent)


def to_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        return json_text(value)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


#: Not printable by themselves, but scripts and emoji are written with them.
_JOINERS = "\u200c\u200d"


def visible(text: str) -> str:
    """Text of strangers for a terminal: what would move the cursor, colour or turn the line around is written out."""
    return "".join(
        char if (char.isprintable() and char != "\\") or char in _JOINERS else char.encode("unicode_escape").decode()
        for char in text
    )


@dataclass(frozen=True)
class Printer:
    json_output: bool

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, none: str = "nothing") -> None:
        """A table as text, or a list of objects as JSON."""
        listed = [list(row) for row in rows]
        if self.json_output:
            self.json([dict(zip(columns, row, strict=True)) for row in listed])
        elif not listed:
            print(f"({none})")
        else:
            print_table(columns, listed)

    def record(self, record: Mapping[str, Any]) -> None:
        """One thing with its fields."""
        if self.json_output:
            self.json(record)
            return
        width = max(map(len, record), default=0)
        for key, value in record.items():
            print(f"{key:<{width}}  {to_text(value)}")

    def json(self, value: Any) -> None:
        # Where the terminal cannot show a character, JSON still can.
        ascii_only = sys.stdout.encoding.lower() != "utf-8"
        print(json_text(value, ascii_only=ascii_only, indent=2 if sys.stdout.isatty() else None))

    @staticmethod
    def note(text: str) -> None:
        print(text, file=sys.stderr)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """On a terminal with rules and fitted to its width; into a pipe plain, and never cut."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(rich_table(columns, rows))
    else:
        print(plain_table(columns, rows))


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [list(columns), *([to_text(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")  # a long value goes on in the next line and is never cut
    for row in rows:
        table.add_row(*(Text(to_text(value)) for value in row))
    return table
