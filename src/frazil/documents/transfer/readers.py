"""Reads files with documents, or with their revisions, in batches: each row as a request, with its line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from frazil.documents.model import FIELD_NAMES, Column
from frazil.documents.transfer import STAMPS, Format
from frazil.documents.transfer.columns import columns_of_rows, parse_sizes
from frazil.documents.transfer.values import parse_json, parser_of, plain_number
from frazil.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from pyarrow.csv import InvalidRow

_ROWS = 2_000
#: No valid row is longer: tags and attributes are limited.
_BLOCK = 4 << 20


@dataclass(frozen=True)
class BadRow:
    """A row that cannot become a document.

    Attributes:
        line: in a text file the line at which it begins, in Parquet the number of the row; the first has 1.
        reason: what is wrong.
        row: what stands there, as far as it can be read.
    """

    line: int
    reason: str
    row: Any


@dataclass(frozen=True)
class Rows:
    """Some rows, those that could be read and the others."""

    lines: Sequence[int]
    rows: Sequence[dict[str, Any]]
    bad: Sequence[BadRow] = field(default_factory=list)

    def columns(self) -> dict[str, pa.Array] | None:
        """Returns the rows by field; None: a value is not of the type of its field."""
        return columns_of_rows(self.rows)

    def at(self, places: Sequence[int]) -> Sequence[dict[str, Any]]:
        """Returns some of the rows."""
        return [self.rows[place] for place in places]


@dataclass(frozen=True)
class ColumnRows:
    """Rows that were read as columns, and become requests only where they are wanted as such.

    Attributes:
        lines: of the rows.
        batch: the rows.
        convert: makes requests of a batch.
        is_text: all values are texts, also numbers.
    """

    lines: Sequence[int]
    batch: pa.RecordBatch
    convert: Callable[[pa.RecordBatch], list[dict[str, Any]]]
    is_text: bool = False
    bad: Sequence[BadRow] = ()

    @property
    def rows(self) -> Sequence[dict[str, Any]]:
        return self.convert(self.batch)

    def columns(self) -> dict[str, pa.Array] | None:
        columns = dict(zip(self.batch.schema.names, self.batch.columns, strict=True))
        if "attributes" in columns and not _is_string(columns["attributes"].type):  # binary stands for parsed JSON
            return None
        if self.is_text and "size_bytes" in columns:
            columns["size_bytes"] = parse_sizes(columns["size_bytes"])
        return columns

    def at(self, places: Sequence[int]) -> Sequence[dict[str, Any]]:
        return self.convert(self.batch.take(pa.array(places, pa.int64())))


def read_rows(file: IO[bytes], form: Format, columns: Mapping[str, Column]) -> Iterator[Rows | ColumnRows]:
    """Streams the rows of a file.

    Args:
        file: is read once, from its beginning; Parquet needs a file that can seek.
        form: its format.
        columns: the added columns of the store, by name.

    Raises:
        UsageError: the file as a whole is not of this format, or has a column that the store has not.
        IntegrityError: a Parquet file is damaged.
    """
    return _READERS[form](file, columns)


def _read_ndjson(file: IO[bytes], columns: Mapping[str, Column]) -> Iterator[Rows | ColumnRows]:
    lines: list[int] = []
    rows: list[dict[str, Any]] = []
    bad: list[BadRow] = []
    for number, text in _lines_of(file):
        if isinstance(text, BadRow):
            bad.append(text)
        elif text.strip():
            _parse_line(number, text, lines, rows, bad)
        if len(rows) + len(bad) >= _ROWS:
            yield Rows(lines, rows, bad)
            lines, rows, bad = [], [], []
    yield Rows(lines, rows, bad)


def _lines_of(file: IO[bytes]) -> Iterator[tuple[int, bytes | BadRow]]:
    """Numbered lines; one that is too long to be a document is not kept in memory."""
    number = 0
    while text := file.readline(_BLOCK):
        number += 1
        if len(text) == _BLOCK and not text.endswith(b"\n"):
            start = _excerpt(text)
            while (rest := file.readline(_BLOCK)) and not rest.endswith(b"\n"):
                pass
            yield number, BadRow(number, f"it has more than {_BLOCK:,} bytes", start)
        else:
            yield number, text.removeprefix(b"\xef\xbb\xbf") if number == 1 else text


def _parse_line(number: int, text: bytes, lines: list[int], rows: list[dict[str, Any]], bad: list[BadRow]) -> None:
    try:
        row = parse_json(text)
    except (ValueError, RecursionError) as error:
        bad.append(BadRow(number, f"it is no JSON: {error}", _excerpt(text)))
        return
    if isinstance(row, dict):
        lines.append(number)
        rows.append(row)
    else:
        kind = "a list" if isinstance(row, list) else "no object"
        bad.append(BadRow(number, f"it is {kind}, and every line must be one JSON object", _excerpt(text)))


def _read_csv(file: IO[bytes], columns: Mapping[str, Column]) -> Iterator[Rows | ColumnRows]:
    from pyarrow import csv

    names = _csv_header(file, columns)
    invalid: list[InvalidRow] = []

    def skip(row: InvalidRow) -> str:
        invalid.append(row)
        return "skip"

    parsers = {name: parser_of(name, columns) for name in names}
    position = _CsvPosition()
    try:
        blocks = csv.open_csv(
            file,
            csv.ReadOptions(column_names=names, use_threads=False, block_size=_BLOCK),
            csv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip, ignore_empty_lines=False),
            csv.ConvertOptions(
                column_types={name: pa.binary() for name in names},
                strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""],
            ),
        )  # fmt: skip
        for batch in blocks:
            for start in range(0, batch.num_rows, _ROWS):
                yield _csv_rows(batch.slice(start, _ROWS), names, parsers, position, invalid)
    except pa.ArrowInvalid as error:
        if not str(error).startswith("Empty CSV"):  # nothing after the head line
            raise UsageError(
                f"the CSV file cannot be read after line {position.line - 1:,}",
                cause=str(error),
                hint="is there a quotation mark that is not closed?",
            ) from error
    yield Rows([], [], [position.bad(row, len(names)) for row in invalid])


def _csv_header(file: IO[bytes], columns: Mapping[str, Column]) -> list[str]:
    import csv

    head = file.readline(_BLOCK)
    try:
        names = next(csv.reader([head.decode("utf-8-sig").rstrip("\r\n")]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(
            "the first line is no head line of CSV", cause=str(error), hint="--format, or a file in UTF-8"
        ) from error
    _check_names(names, columns)
    return names


def _check_names(names: Sequence[str], columns: Mapping[str, Column]) -> None:
    if not names:
        raise UsageError("the file is empty", hint="a file whose columns have the names of the fields")
    known = (*FIELD_NAMES, *STAMPS, *columns)
    for name in names:
        if name not in known:
            shown = name if len(name) <= 80 else name[:77] + "…"
            raise UsageError(
                f"field '{shown}' does not exist",
                hint=f"rename the column to one of: {', '.join(known)}; or add it: frazil docs schema add-column",
            )
    if twice := {name for name in names if list(names).count(name) > 1}:
        raise UsageError(f"two columns have the same name: {', '.join(sorted(twice))}", hint="one column per field")
    if "filename" not in names:
        raise UsageError("the file has no column 'filename'", hint="every document has a filename")


class _CsvPosition:
    """Line numbers of CSV rows, which may have line breaks in their values."""

    def __init__(self) -> None:
        self.row, self.line = 1, 2

    def advance(self, breaks: int) -> int:
        line = self.line
        self.row, self.line = self.row + 1, line + 1 + breaks
        return line

    def advance_all(self, breaks: Sequence[int]) -> Any:
        """Returns the lines of rows, as a numpy array."""
        following = self.line + np.cumsum(np.asarray(breaks, np.int64) + 1)
        lines = following - 1 - np.asarray(breaks, np.int64)
        self.row += len(breaks)
        if len(breaks):
            self.line = int(following[-1])
        return lines

    def bad(self, row: InvalidRow, expected: int) -> BadRow:
        line = self.advance(row.text.count("\n"))
        return BadRow(line, f"it has {row.actual_columns} values, and the head line has {expected}", row.text[:200])


def _csv_rows(
    batch: pa.RecordBatch,
    names: Sequence[str],
    parsers: Mapping[str, Callable[[str], Any]],
    position: _CsvPosition,
    invalid: list[InvalidRow],
) -> Rows | ColumnRows:
    """The rows of a block. Invalid rows are known by their number among all rows, which tells where they stood."""
    breaks = _count_breaks(batch)
    if not invalid and (texts := _decode(batch)) is not None:
        lines = position.advance_all(breaks)
        is_any = np.logical_or.reduce([column.is_valid().to_numpy(zero_copy_only=False) for column in texts.columns])
        return ColumnRows(
            lines[is_any].tolist(), texts.filter(pa.array(is_any)), partial(_parse_texts, parsers), is_text=True
        )
    lines, rows, bad = [], [], []
    for values, broken in zip(zip(*(column.to_pylist() for column in batch.columns), strict=True), breaks, strict=True):
        while invalid and invalid[0].number == position.row:
            bad.append(position.bad(invalid.pop(0), len(names)))
        line = position.advance(broken)
        try:
            row = {
                name: parsers[name](value.decode())
                for name, value in zip(names, values, strict=True)
                if value is not None
            }
        except UnicodeDecodeError as error:
            bad.append(BadRow(line, f"it is not UTF-8: {error.reason}", _excerpt(b",".join(v or b"" for v in values))))
            continue
        if row:
            lines.append(line)
            rows.append(row)
    return Rows(lines, rows, bad)


def _decode(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    try:
        return batch.cast(pa.schema([pa.field(name, pa.string()) for name in batch.schema.names]))
    except pa.ArrowInvalid:  # not UTF-8
        return None


def _parse_texts(parsers: Mapping[str, Callable[[str], Any]], batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [
        {name: parsers[name](value) for name, value in row.items() if value is not None} for row in batch.to_pylist()
    ]


def _count_breaks(batch: pa.RecordBatch) -> list[int]:
    import pyarrow.compute as pc

    total = pa.array([0] * batch.num_rows, pa.int32())
    for column in batch.columns:
        total = pc.add(total, pc.fill_null(pc.count_substring(column, "\n"), 0))
    counts: list[int] = total.to_pylist()
    return counts


def _read_parquet(file: IO[bytes], columns: Mapping[str, Column]) -> Iterator[Rows | ColumnRows]:
    import pyarrow.parquet as pq

    try:
        whole = pq.ParquetFile(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError("the file is no Parquet file", cause=str(error), hint="--format") from error
    names = whole.schema_arrow.names
    _check_names(names, columns)
    start = 1
    batches = whole.iter_batches(batch_size=_ROWS, use_threads=False)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            raise IntegrityError(
                f"the Parquet file cannot be read after row {start - 1:,}", cause=str(error), hint="a sound copy of it"
            ) from error
        yield _parquet_batch(batch, start, partial(_parquet_rows, columns=columns))
        start += batch.num_rows


def _parquet_batch(
    batch: pa.RecordBatch, start: int, convert: Callable[[pa.RecordBatch], list[dict[str, Any]]]
) -> ColumnRows:
    """The rows of a batch; bad are those with a text that is not UTF-8, which Arrow does not look at when it reads."""
    lines = range(start, start + batch.num_rows)
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        pass
    else:
        return ColumnRows(lines, batch, convert)
    plain = pa.record_batch([_decode_dictionary(column) for column in batch.columns], names=batch.schema.names)
    good: list[int] = []
    bad: list[BadRow] = []
    for place, line in enumerate(lines):
        row = plain.take(pa.array([place], pa.int64()))  # a slice would bring the values of its neighbours
        if wrong := [name for name, value in zip(row.schema.names, row.columns, strict=True) if not _is_valid(value)]:
            readable = row.select([name for name in row.schema.names if name not in wrong])
            bad.append(BadRow(line, f"field '{wrong[0]}' is not UTF-8", next(iter(convert(readable)), {})))
        else:
            good.append(place)
    kept = plain.take(pa.array(good, pa.int64()))
    return ColumnRows([lines[place] for place in good], kept, convert, bad=bad)


def _is_valid(values: pa.Array) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_string(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _decode_dictionary(column: pa.Array) -> pa.Array:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _parquet_rows(batch: pa.RecordBatch, columns: Mapping[str, Column]) -> list[dict[str, Any]]:
    names = batch.schema.names
    values = [_parquet_values(name, column, columns) for name, column in zip(names, batch.columns, strict=True)]
    return [{n: v for n, v in zip(names, row, strict=True) if v is not None} for row in zip(*values, strict=True)]


def _parquet_values(name: str, column: pa.Array, columns: Mapping[str, Column]) -> list[Any]:
    column = _decode_dictionary(column)
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pa.timestamp("us", tz=kind.tz), safe=False)
    values: list[Any] = column.to_pylist()
    if pa.types.is_map(kind):
        return [None if value is None else dict(value) for value in values]
    if pa.types.is_struct(kind):  # as tools without maps write tags
        return [None if v is None else {k: each for k, each in v.items() if each is not None} for v in values]
    if pa.types.is_floating(kind) and (name == "size_bytes" or name in columns):
        wanted = "long" if name == "size_bytes" else columns[name].type
        return [None if v is None else plain_number(v) if wanted == "long" else v for v in values]
    if name in ("tags", "attributes") and _is_string(kind):
        parse = parser_of(name, columns)
        return [None if value is None else parse(value) for value in values]
    return values


def _excerpt(text: bytes) -> str:
    return text[:200].decode(errors="replace").rstrip("\r\n")


_READERS: dict[Format, Callable[[IO[bytes], Mapping[str, Column]], Iterator[Rows | ColumnRows]]] = {
    "csv": _read_csv,
    "ndjson": _read_ndjson,
    "parquet": _read_parquet,
}
