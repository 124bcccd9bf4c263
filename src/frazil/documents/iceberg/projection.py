"""The projection: a SQLite file with the documents of the log, and the position that it has reached there.

`projection.db` is a link to the file of the present generation. A new one is built beside it, and takes its place by
one rename: whoever reads the former generation goes on with it until the next read.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import orjson
from sqlalchemy import Index
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from frazil.atomic_files import sync_file
from frazil.documents.model import to_micros
from frazil.documents.sql.bulk import insert_rows
from frazil.documents.sql.engine import begin_write, connect, open_sqlite
from frazil.documents.sql.migrate import CLOCK
from frazil.documents.sql.records import read_state, write_state
from frazil.documents.sql.schema import metadata, store_state
from frazil.errors import IntegrityError
from frazil.settings.permissions import make_private_folder

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

NAME: Final = "projection.db"
_POSITION, _SCHEMA, _CURSOR_KEY = "projection_position", "projection_schema", "projection_cursor_key"
#: Settings of a projection that is being built. Sorting for its indexes would take hundreds of MB of memory.
_BUILD: Final = ("journal_mode = OFF", "locking_mode = EXCLUSIVE", "cache_size = -65536", "temp_store = FILE")
_SIDE_FILES: Final = ("-wal", "-shm", "-journal")


@dataclass(frozen=True)
class ProjectionPosition:
    """What a projection has taken in.

    Attributes:
        log_id: of the topic's log.
        offset: the first offset that it does not have.
        epoch: of the last message below the offset; 0: not known.
        rows: revisions in it.
        table: UUID of the history table that it was built from or compared with; None: there was none.
    """

    log_id: str
    offset: int
    epoch: int
    rows: int
    table: str | None = None

    def advanced(self, offset: int, epoch: int, rows: int) -> ProjectionPosition:
        """Returns the position after so many more revisions."""
        return replace(self, offset=offset, epoch=epoch, rows=self.rows + rows)


class Projection:
    """An open generation. Any number of threads may read it, also while one writes."""

    def __init__(self, file: Path, engine: Engine, cursor_key: bytes) -> None:
        self.file, self.engine, self.cursor_key = file, engine, cursor_key
        found = file.stat()
        self.identity = (found.st_dev, found.st_ino)

    @classmethod
    def open(cls, file: Path, *, read_only: bool = False) -> Self:
        """Opens a file that exists.

        Raises:
            IntegrityError: it is no projection of this version of Frazil.
        """
        engine = open_sqlite(file, synchronous="NORMAL", read_only=read_only)
        try:
            with connect(engine) as connection:
                schema, key = read_state(connection, _SCHEMA), read_state(connection, _CURSOR_KEY)
            _require_schema(file, schema)
            return cls(file, engine, bytes.fromhex(key or ""))
        except BaseException:
            engine.dispose()
            raise

    @classmethod
    def create(cls, file: Path, cursor_key: bytes) -> Self:
        """Creates an empty one without indexes and without a journal, to be filled, completed and published.

        One thread uses it, and it is removed if that fails.
        """
        engine = open_sqlite(file, synchronous="OFF")
        with connect(engine) as connection:
            for setting in _BUILD:
                connection.exec_driver_sql(f"PRAGMA {setting}")
        with begin_write(engine) as connection:
            for table in metadata.sorted_tables:
                connection.execute(CreateTable(table))
            write_state(connection, _SCHEMA, _schema_digest())
            write_state(connection, _CURSOR_KEY, cursor_key.hex())
        return cls(file, engine, cursor_key)

    def position(self) -> ProjectionPosition | None:
        with connect(self.engine) as connection:
            return read_position(connection)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction, which no other thread or process writes beside."""
        with begin_write(self.engine) as connection:
            yield connection

    def index_keys(self) -> None:
        """Creates the index by which what is applied next finds idempotency keys. They are few."""
        with begin_write(self.engine) as connection:
            connection.execute(CreateIndex(_key_index()))

    def complete(self) -> None:
        """Creates the other indexes of a filled one."""
        with begin_write(self.engine) as connection:
            for index in _indexes():
                if index is not _key_index():
                    connection.execute(CreateIndex(index))

    def close(self) -> None:
        self.engine.dispose()


def read_position(connection: Connection) -> ProjectionPosition | None:
    text = read_state(connection, _POSITION)
    return None if text is None else ProjectionPosition(**orjson.loads(text))


def write_position(connection: Connection, position: ProjectionPosition, clock: datetime | None = None) -> None:
    """Writes the position, and the moment of the last acknowledgement unless that stays."""
    rows = [(_POSITION, orjson.dumps(asdict(position)).decode())]
    if clock is not None:
        rows.append((CLOCK, str(to_micros(clock))))
    insert_rows(connection, store_state, rows, replace=True)


class ProjectionFolder:
    """The folder with the generations of one projection.

    Args:
        folder: made when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.link = folder / NAME

    def identity(self) -> tuple[int, int] | None:
        """Returns what tells the present generation from others; None: there is none."""
        try:
            found = self.link.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def open(self, *, read_only: bool = False) -> Projection | None:
        """Opens the present generation; None: there is none.

        Raises:
            IntegrityError: it is damaged, or of another version of Frazil.
        """
        while True:
            file = self.link.resolve()
            if not file.exists():
                return None
            try:
                return Projection.open(file, read_only=read_only)
            except Exception:
                if self.link.resolve() == file and file.exists():  # else it was replaced meanwhile
                    raise

    def create(self, cursor_key: bytes) -> Projection:
        """Returns a new generation, empty, which nobody else sees before `publish`."""
        make_private_folder(self.folder)
        return Projection.create(self.folder / f"projection-{secrets.token_hex(6)}.db", cursor_key)

    def publish(self, built: Projection, *, keep_former: bool = False) -> Projection:
        """Puts a generation in the place of the present one, durably, and returns it opened for use.

        Args:
            built: it is closed by this.
            keep_former: the former generation is kept under another name, for whoever wants to look into it.
        """
        with connect(built.engine) as connection:
            for setting in ("locking_mode = NORMAL", "journal_mode = WAL"):
                connection.exec_driver_sql(f"PRAGMA {setting}")
        built.close()
        sync_file(built.file)
        if keep_former and (former := self.link.resolve()).exists():
            _move(former, self.folder / f"former-{secrets.token_hex(4)}.db")
        new_link = self.folder / f".{secrets.token_hex(6)}.link"
        new_link.symlink_to(built.file.name)
        is_file = self.link.exists() and not self.link.is_symlink()
        new_link.replace(self.link)
        if is_file:  # somebody has put a copy here; its log must not be taken for one of ours
            _remove_side_files(self.link)
        self.remove_former()
        return Projection.open(built.file)

    def remove_former(self) -> None:
        """Removes all generations but the present one. Who still reads one of them goes on."""
        present = self.link.resolve().name
        for file in self.folder.glob("projection-*.db"):
            if file.name != present:
                _remove_side_files(file)
                file.unlink(missing_ok=True)

    def has_unfinished_log(self) -> bool:
        """Whether the last writer was killed before it had closed the present generation."""
        file = self.link.resolve()
        try:
            return file.with_name(file.name + "-wal").stat().st_size > 0
        except OSError:
            return False


def _move(file: Path, target: Path) -> None:
    for end in ("", *_SIDE_FILES):
        with suppress(FileNotFoundError):
            file.with_name(file.name + end).replace(target.with_name(target.name + end))


def _remove_side_files(file: Path) -> None:
    for end in _SIDE_FILES:
        file.with_name(file.name + end).unlink(missing_ok=True)


def _indexes() -> list[Index]:
    return [i for table in metadata.sorted_tables for i in sorted(table.indexes, key=lambda i: str(i.name))]


def _key_index() -> Index:
    (found,) = [index for index in _indexes() if index.name == "history_by_key"]
    return found


@cache
def _schema_digest() -> str:
    """Changes with every change of the tables: a projection of another schema is built anew."""
    dialect = sqlite.dialect()
    texts = [str(CreateTable(table).compile(dialect=dialect)) for table in metadata.sorted_tables]
    texts += [str(CreateIndex(index).compile(dialect=dialect)) for index in _indexes()]
    return sha256("\n".join(texts).encode()).hexdigest()


def _require_schema(file: Path, digest: str | None) -> None:
    if digest != _schema_digest():
        raise IntegrityError(f"the projection {file} was written by another version of Frazil")


def cursor_key_of(log_key: str) -> bytes:
    """Returns the key of cursors: the same for every generation, so that cursors outlive a rebuild."""
    return sha256(b"frazil documents cursors" + log_key.encode()).digest()
