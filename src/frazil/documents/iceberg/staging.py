"""Staged files: revisions as Parquet below a table, to be named by one message of the log."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from frazil.documents.arrow import REVISION_SCHEMA
from frazil.documents.messages import BulkFile
from frazil.errors import IntegrityError, NotAllowedError, NotFoundError, UnavailableError, UsageError, first_line
from frazil.tables.durability import sync_files

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

    from frazil.settings import Settings
    from frazil.tables import TableStore

_FOLDER: Final = "_bulk"


class Staging:
    """The folder of staged files, inside the location of the history table: some catalogs allow no other place.

    Its name begins with `_`, so that the removal of orphans leaves it alone.

    Args:
        io: reaches the files of the table.
        location: of the table.
    """

    def __init__(self, io: FileIO, location: str) -> None:
        self._io = io
        self.location = f"{location.rstrip('/')}/{_FOLDER}/"

    def write(self, rows: pa.Table) -> BulkFile:
        """Writes revisions as one file, and returns when it is durable.

        Args:
            rows: in `REVISION_SCHEMA`.

        Raises:
            UsageError: a text is not UTF-8. Published, it would stop every reader of the log.
        """
        rows = rows.cast(REVISION_SCHEMA)
        try:
            rows.validate(full=True)
        except pa.ArrowInvalid as error:
            raise UsageError(
                "the revisions cannot be staged", cause=first_line(error), hint="texts in UTF-8"
            ) from error
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")
        content = sink.getvalue()
        uri = f"{self.location}{uuid.uuid4()}.parquet"
        try:
            with self._io.new_output(uri).create() as file:
                file.write(content)
        except OSError as error:
            raise UnavailableError(f"cannot write the staged file {uri}", cause=first_line(error)) from error
        sync_files([uri])
        return BulkFile(uri, rows.num_rows, content.size, hashlib.sha256(content).hexdigest())

    def read(self, file: BulkFile) -> pa.Table:
        """Returns the revisions of a staged file.

        Raises:
            NotFoundError: it does not exist any more; its rows are in the tables.
            IntegrityError: its bytes are not those that were published.
            NotAllowedError: it lies outside of the folder.
        """
        if not file.uri.startswith(self.location) or "/" in file.uri.removeprefix(self.location):
            raise NotAllowedError(f"{file.uri} is no staged file", cause=f"it does not lie in {self.location}")
        try:
            with self._io.new_input(file.uri).open() as stream:
                content = stream.read()
        except FileNotFoundError as error:
            raise NotFoundError(f"the staged file {file.uri} does not exist") from error
        except OSError as error:
            raise UnavailableError(f"cannot read the staged file {file.uri}", cause=first_line(error)) from error
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise IntegrityError(
                f"the staged file {file.uri} is damaged", cause="its SHA-256 is another", hint="frazil docs verify"
            )
        return pq.read_table(pa.BufferReader(content)).cast(REVISION_SCHEMA)

    def remove(self, file: BulkFile) -> None:
        """Removes a file that no message names. If that fails it stays, and nobody reads it."""
        with suppress(OSError):
            self._io.delete(file.uri)


def open_staging(store: TableStore, settings: Settings) -> Staging:
    """Returns the folder of staged files. The history table is created if it does not exist."""
    from frazil.documents.tables import ensure_history

    history = ensure_history(store, settings)
    return Staging(history.io, history.location())
