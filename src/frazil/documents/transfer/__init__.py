"""Documents as files: CSV, NDJSON and Parquet, read and written in bounded memory."""

from __future__ import annotations

from pathlib import PurePath
from typing import Literal

from frazil.errors import UsageError

Format = Literal["csv", "ndjson", "parquet"]
FORMATS: tuple[Format, ...] = ("csv", "ndjson", "parquet")

#: Before the fields of the record, in files with the whole history.
STAMPS = ("operation", "valid_from")

_ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".parquet": "parquet",
}


def format_of(name: str) -> Format:
    """Returns the format that the ending of a file's name stands for.

    Raises:
        UsageError: it stands for none.
    """
    found = _ENDINGS.get(PurePath(name).suffix.lower())
    if found is None:
        raise UsageError(f"the name '{name}' does not tell the format", hint=f"--format {', '.join(FORMATS)}")
    return found
