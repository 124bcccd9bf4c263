"""Rows of a query as text, JSON, CSV or Parquet, to standard output or a file."""

from __future__ import annotations

import csv
import errno
import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from frazil.atomic_files import replace_file
from frazil.cli.printing import json_text, plain_table, print_table, rich_table, to_text
from frazil.errors import NotAllowedError, UnavailableError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa


def check_output(output: str, out: Path | None) -> None:
    """Raises where rows could not be written: before a statement changes something, not after."""
    if out is None:
        if output == "parquet" and sys.stdout.isatty():
            raise UsageError("Parquet is binary and cannot be printed to a terminal", hint="--out rows.parquet")
        return
    with _told(out):
        mode = _mode(out)
        if _own_descriptor(out) is not None:
            return
        if mode is None or stat.S_ISREG(mode):
            tempfile.TemporaryFile(dir=out.resolve().parent).close()
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if mode is not None and not os.access(out, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_result(table: pa.Table, output: str, out: Path | None) -> None:
    """Writes the rows; a file appears whole or not at all."""
    if output == "text" and out is None:
        _page(table)
    else:
        content = {"json": _as_json, "csv": _as_csv, "text": _as_text, "parquet": _as_parquet}[output](table)
        if out is None:
            # The same bytes as in a file, whatever the terminal's encoding: programs read them.
            sys.stdout.buffer.write(content)
        else:
            with _told(out), _opened(out) as file:
                file.write(content)
    sys.stdout.flush()


@contextmanager
def written_file(out: Path | None) -> Iterator[IO[bytes]]:
    """A file to be written piece by piece, which appears whole or not at all; None: standard output."""
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with _told(out), _opened(out) as file:
        yield file


@contextmanager
def _told(out: Path) -> Iterator[None]:
    """Within this block the operating system's errors come out in our words."""
    try:
        yield
    except BrokenPipeError:
        pass  # the reader of a named pipe had enough, as in `| head`
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UnavailableError(
                f"cannot write {out}: the disk is full",
                cause=error.strerror,
                hint="free some space, then run the command again",
            ) from error
        raise NotAllowedError(
            f"cannot write {out}", cause=error.strerror, hint="give --out a file in a folder that you may write to"
        ) from error


def _opened(out: Path) -> AbstractContextManager[IO[bytes]]:
    mode = _mode(out)
    if (number := _own_descriptor(out)) is not None:
        return os.fdopen(os.dup(number), "wb")
    if mode is not None and not stat.S_ISREG(mode):  # a named pipe or a device
        return out.open("wb")
    return replace_file(out.resolve(), mode=None if mode is None else stat.S_IMODE(mode))


def _mode(out: Path) -> int | None:
    """Mode of the file that the name leads to; None where there is none yet."""
    try:
        return out.stat().st_mode
    except FileNotFoundError:
        return None


def _own_descriptor(out: Path) -> int | None:
    """The number of a file that this process has open, where the name leads to one: /dev/stdout, /dev/fd/63.

    Opened by its name it would be cut to nothing, also what `>> file` had in it.
    """
    while out.is_symlink():
        if out.parent.resolve() == Path(f"/proc/{os.getpid()}/fd"):
            return int(out.name)
        out = out.parent / out.readlink()
    return None


def _as_parquet(table: pa.Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pa.BufferOutputStream() as sink:
        pq.write_table(table, sink)
        return bytes(sink.getvalue())


def _as_json(table: pa.Table) -> bytes:
    names = table.column_names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            f"JSON objects cannot hold columns with the same name: {', '.join(twice)}",
            hint="give the columns different names with AS",
        )
    return f"{json_text([dict(zip(names, row, strict=True)) for row in _rows(table)])}\n".encode()


def _as_csv(table: pa.Table) -> bytes:
    text = io.StringIO()
    if table.column_names:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows([_cell(value) for value in row] for row in _rows(table))
    return text.getvalue().encode()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else to_text(value)


def _as_text(table: pa.Table) -> bytes:
    return f"{plain_table(table.column_names, _rows(table))}\n".encode() if table.column_names else b""


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


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Column by column: names may occur twice."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
