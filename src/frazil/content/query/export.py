"""Export of hits with all their columns to CSV, NDJSON or Parquet, in bounded memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from frazil.content.query.filters import Search
from frazil.content.query.objects import require_bucket
from frazil.content.query.page import Hits, plain_rows
from frazil.content.tables import ContentTables
from frazil.errors import ConflictError, UnavailableError
from frazil.tables.reading.retrying import is_missing_file

Format = Literal["csv", "ndjson", "parquet"]

#: Rows that are Python's own at once; metadata may have a megabyte each.
_ROWS = 2000


def export(
    tables: ContentTables, search: Search, file: IO[bytes], form: Format, told: Callable[[int], None] = lambda _: None
) -> int:
    """Writes all hits, in the order in which the table has them. Returns how many.

    Args:
        tables: where.
        search: which objects.
        file: where to.
        form: how.
        told: is told now and then how many are written.

    Raises:
        NotFoundError: the bucket is unknown, or the table does not exist yet.
        ConflictError: upkeep took a file away meanwhile.
        UnavailableError: storage does not answer.
    """
    # The file is written once: where upkeep takes a file away meanwhile, it must not begin anew.
    hits = tables.read(tables.objects, lambda table: Hits(tables, table, search))
    names = [name for name in hits.schema.names if not name.startswith("frazil_")]
    schema = pa.schema([hits.schema.field(name) for name in names])
    count = 0
    with _WRITERS[form](file, schema) as writer:
        for rows in _streamed(hits, names):
            writer.write(rows)
            count += rows.num_rows
            told(count)
    if not count and search.bucket is not None:
        require_bucket(tables, search.bucket)
    return count


def _streamed(hits: Hits, names: list[str]) -> Iterator[pa.Table]:
    try:
        for block, at in hits:
            for rows in block.tables(names, at):
                for start in range(0, rows.num_rows, _ROWS):
                    yield rows.slice(start, _ROWS)
    except OSError as error:  # of reading: those of writing are raised where it is written
        if is_missing_file(error):
            raise ConflictError("a file of the table went away while it was read", hint="the same once more") from error
        raise UnavailableError("the files of the table cannot be read", hint="frazil doctor") from error


class _Csv:
    """With a head line; empty for null, lists and maps as JSON. Texts are as they are, also those with `=` before."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._line(schema.names)

    def __enter__(self) -> _Csv:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open but the file, which is the caller's."""

    def write(self, rows: pa.Table) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [_cell(value) for value in row.values()] for row in plain_rows(rows)
        )
        self._file.write(text.getvalue().encode())

    def _line(self, values: list[str]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(values)
        self._file.write(text.getvalue().encode())


class _Ndjson:
    """One object per line, with all columns."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file

    def __enter__(self) -> _Ndjson:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open but the file, which is the caller's."""

    def write(self, rows: pa.Table) -> None:
        for row in plain_rows(rows):
            self._file.write(_json(row).encode() + b"\n")


class _Parquet:
    """Columns as the table has them."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(_Counted(file), schema, compression="zstd")
        self._waiting: list[pa.Table] = []

    def __enter__(self) -> _Parquet:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._waiting:
            self._flush()
        self._writer.close()

    def write(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        if sum(t.nbytes for t in self._waiting) > 16 << 20 or sum(t.num_rows for t in self._waiting) > 100_000:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting = []


class _Counted:
    """A file that knows where it is, for Parquet: a pipe does not."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._at = file, 0

    def write(self, data: Any) -> int:
        self._file.write(data)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """The file is the caller's."""


_WRITERS: dict[Format, Callable[[IO[bytes], pa.Schema], Any]] = {"csv": _Csv, "ndjson": _Ndjson, "parquet": _Parquet}


def _json(value: Any) -> str:
    import orjson

    return orjson.dumps(value, default=_plain).decode()


def _plain(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def _cell(value: Any) -> Any:
    """Numbers are the writer's own to put into text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return _json(value)
    return value if value is None or isinstance(value, (str, int, float)) else _plain(value)
