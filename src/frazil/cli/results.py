"""Rows of a query as text, JSON, CSV or Parquet, to standard output or a file."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from frazil.cli.printing import plain_table, print_table, rich_table, to_json, to_text
from frazil.errors import NotAllowedError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa


def write_result(table: pa.Table, output: str, out: Path | None) -> None:
    """Writes the rows; a file appears whole or not at all."""
    if output == "parquet":
        _write_parquet(table, out)
    elif output == "text" and out is None:
        _page(table)
    else:
        text = {"json": _as_json, "csv": _as_csv, "text": _as_text}[output](table)
        if out is None:
            sys.stdout.write(text)
        else:
            with _whole_file(out) as file:
                file.write(text.encode())


def _write_parquet(table: pa.Table, out: Path | None) -> None:
    import pyarrow.parquet as pq

    if out is not None:
        with _whole_file(out) as file:
            pq.write_table(table, file)
    elif sys.stdout.isatty():
        raise UsageError("Parquet is binary and would spoil the terminal", hint="--out rows.parquet")
    else:
        pq.write_table(table, sys.stdout.buffer)


@contextmanager
def _whole_file(out: Path) -> Iterator[IO[bytes]]:
    try:
        with tempfile.NamedTemporaryFile(dir=out.parent, prefix=f".{out.name}.", delete=False) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(out)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise NotAllowedError(
            f"{out} cannot be written", cause=error.strerror, hint="--out names a file in a folder you may write"
        ) from error


def _as_json(table: pa.Table) -> str:
    return json.dumps(table.to_pylist(), default=to_json, ensure_ascii=False) + "\n"


def _as_csv(table: pa.Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(["" if v is None else to_text(v) for v in row.values()] for row in table.to_pylist())
    return text.getvalue()


def _as_text(table: pa.Table) -> str:
    return plain_table(table.column_names, _rows(table)) + "\n"


def _page(table: pa.Table) -> None:
    """A page at a time where a person looks at more than fits the screen."""
    if not table.column_names:
        return
    rows = _rows(table)
    if sys.stdout.isatty() and len(rows) > shutil.get_terminal_size().lines - 4:
        from rich.console import Console

        console = Console()
        with console.pager():
            console.print(rich_table(table.column_names, rows))
    else:
        print_table(table.column_names, rows)


def _rows(table: pa.Table) -> list[list[Any]]:
    return [list(row.values()) for row in table.to_pylist()]
