"""Values inside `metadata`: what a path leads to in the JSON of many rows.

A path is `exif.Model`, `labels[*].Name`, or a JSONPath: `$.labels[?@.Confidence > 90].Name`. Names and places are
DuckDB's to look up, on all processors; what it does not know, such as filters, python-jsonpath does row by row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from frazil.content.query.jsonpath_fallback import HINT, Clock, compile_path, find_values
from frazil.errors import UsageError

if TYPE_CHECKING:
    import duckdb

_STEP = re.compile(
    r"""\.?(?:\[(?P<at>\d+|\*)\]|\[(?P<q>['"])(?P<quoted>[^'"\\*]+)(?P=q)\]|(?P<name>[^.\[\]'"*@?$()]+))"""
)
#: Where text stands that was in an object.
_TEXTS = ("$.text.text", "$.ocr.text")
_BATCH = 4096


@dataclass(frozen=True)
class Values:
    """What a path leads to in so many rows: for each value the number of its row, and which of the JSON texts it is."""

    count: int
    rows: Any
    codes: Any
    texts: list[str]

    @property
    def size(self) -> int:
        """Bytes, roughly."""
        return int(self.rows.nbytes + self.codes.nbytes) + sum(64 + len(text) for text in self.texts)


@dataclass(frozen=True)
class Path:
    """Where to look.

    Attributes:
        text: as it was written.
        plain: the same for DuckDB; None: it does not know such paths.
        clock: how long it may take where DuckDB does not.
    """

    text: str
    plain: str | None
    clock: Clock = field(default_factory=lambda: Clock(None), compare=False)

    @classmethod
    def parse(cls, text: str, seconds: float | None = None) -> Path:
        """Reads a path.

        Args:
            text: the path.
            seconds: that it may take in one search where it is looked up row by row; None: any.

        Raises:
            UsageError: it is none.
        """
        plain = _plain(text)
        if plain is None:
            if not text.startswith("$"):
                raise UsageError(f"{text!r} is no path", hint=HINT)
            compile_path(text)
        return cls(text, plain, Clock(seconds))

    def of(self, texts: Any) -> Values:
        """What is there in some JSON texts.

        Raises:
            UsageError: it cannot be looked up, or takes too long.
        """
        rows, found = find_values(self.text, texts, self.clock) if self.plain is None else self._looked_up(texts)
        one = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
        encoded = one.dictionary_encode()
        return Values(
            len(texts),
            np.asarray(rows.to_numpy(), np.int64),
            encoded.indices.to_numpy(),
            encoded.dictionary.to_pylist(),
        )

    def _looked_up(self, texts: Any) -> tuple[Any, Any]:
        import duckdb

        assert self.plain is not None
        try:
            return _looked_up(texts, self.plain)
        except (duckdb.ProgrammingError, duckdb.DataError) as error:
            raise UsageError(f"{self.text!r} is no path", cause=str(error).splitlines()[0], hint=HINT) from None


def _plain(text: str) -> str | None:
    rest = text.removeprefix("$") if text.startswith("$") else f".{text}"
    steps = []
    place = 0
    while place < len(rest):
        found = _STEP.match(rest, place)
        if found is None or (found["name"] and rest[place] != "."):
            return None
        name = found["quoted"] or found["name"]
        steps.append(f"[{found['at']}]" if found["at"] else f'."{name}"')
        place = found.end()
    return "$" + "".join(steps) if steps else None


@lru_cache(maxsize=1)
def _duckdb() -> duckdb.DuckDBPyConnection:
    """Row groups are many, and to start DuckDB for each of them takes longer than to read it. Cursors are apart."""
    import duckdb

    return duckdb.connect(config={"memory_limit": "512MB"})


def _asked(texts: Any, statement: str, **values: str) -> pa.Table:
    """What DuckDB finds in JSON texts, in small batches, so that it uses all processors."""
    rows = pa.table({"number": pa.array(range(len(texts)), pa.int64()), "metadata": texts.cast(pa.string())})
    with _duckdb().cursor() as connection:
        connection.register("inside", pa.Table.from_batches(rows.to_batches(_BATCH), rows.schema))
        return connection.execute(statement, values).to_arrow_table()


def _looked_up(texts: Any, path: str) -> tuple[Any, Any]:
    found = "try(json_extract(metadata, $path))"
    found = f"unnest({found})" if "[*]" in path else found
    each = "unnest(CASE WHEN json_type(value) = 'ARRAY' THEN json_extract(value, '$[*]') ELSE [value] END)"
    values = _asked(
        texts,
        f"SELECT number, {each} AS value FROM (SELECT number, {found} AS value FROM inside) WHERE value IS NOT NULL",  # noqa: S608
        path=path,
    )
    return values.column("number"), values.column("value").cast(pa.string())


def extract_texts(metadata: Any) -> pa.Array:
    """The text that was in objects, as extractors have found it; null where there was none."""
    parts = ", ".join(f"try(json_extract_string(metadata, '{path}'))" for path in _TEXTS)
    found = _asked(metadata, f"SELECT number, concat_ws(chr(10), {parts}) AS text FROM inside ORDER BY number")  # noqa: S608
    texts = found.column("text").cast(pa.large_string()).combine_chunks()
    return pa.concat_arrays(texts.chunks) if isinstance(texts, pa.ChunkedArray) else texts
