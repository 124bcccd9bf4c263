"""Brings the tables of a database up to date, under a lock, before a store uses them."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, String, column, inspect, select, table, text
from sqlalchemy.exc import SQLAlchemyError

from frazil.documents.sql.engine import begin_write, connect, name_of
from frazil.documents.sql.records import read_state, write_state
from frazil.documents.sql.schema import store_state
from frazil.errors import ConflictError, LockedError, NotFoundError, UnsupportedError

#: The newest version, in `versions/`.
HEAD = "0001"
VERSION_TABLE = "document_store_version"
STORE_ID, CURSOR_SECRET, CLOCK = "store_id", "cursor_secret", "clock"

_LOCK_NAME = "frazil.documents.migration"
_LOCK_NUMBER = 0x6672617A696C
_LOCK_SECONDS = 60
_version = table(VERSION_TABLE, column("version_num", String))


def migrate(engine: Engine) -> None:
    """Creates the tables, or changes them to the schema of this version of Frazil. Without a change, one query.

    Raises:
        UnsupportedError: a newer version of Frazil made the schema.
        ConflictError: the database has other tables of the same names.
    """
    with connect(engine) as connection:
        if _is_ready(connection):
            return
    with _exclusive(engine) as connection:
        if not _is_ready(connection):
            _refuse_others(connection, name_of(engine))
            _upgrade(connection)
            _initialize(connection)


def require_schema(engine: Engine) -> None:
    """Checks that a database has the tables of this version, and changes nothing.

    Raises:
        NotFoundError: it has none of Frazil's.
        UnsupportedError: it has those of another version.
    """
    with connect(engine) as connection:
        if _is_ready(connection):
            return
        if not inspect(connection).has_table(VERSION_TABLE):
            raise NotFoundError(f"the database {name_of(engine)} has no documents", hint="check the URL")
    raise UnsupportedError(
        f"the schema of the database {name_of(engine)} is not version {HEAD}",
        hint="open it once with this version of Frazil, which updates it: frazil docs stats",
    )


def _is_ready(connection: Connection) -> bool:
    there = inspect(connection)
    if not there.has_table(VERSION_TABLE) or connection.scalar(select(_version.c.version_num)) != HEAD:
        return False
    # Written last: where it is, nothing is missing.
    return read_state(connection, CURSOR_SECRET) is not None


def _refuse_others(connection: Connection, name: str) -> None:
    there = inspect(connection)
    if there.has_table("documents") and not there.has_table(store_state.name):
        raise ConflictError(
            f"the database {name} has a table 'documents' that Frazil did not make",
            hint="choose an empty database: database.url",
        )


def _upgrade(connection: Connection) -> None:
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(__file__).parent))

    def steps(current: Any, context: MigrationContext) -> Any:
        for revision in current:
            if revision not in {script.revision for script in scripts.walk_revisions()}:
                raise UnsupportedError(
                    f"the schema of the database has version {revision}, and this Frazil knows up to {HEAD}",
                    hint="install the version of Frazil that was used last, or a newer one",
                )
        return scripts._upgrade_revs("head", current)

    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "fn": steps})
    with Operations.context(context):
        context.run_migrations()


def _initialize(connection: Connection) -> None:
    for name, value in ((STORE_ID, str(uuid.uuid4())), (CLOCK, ""), (CURSOR_SECRET, secrets.token_hex(32))):
        if read_state(connection, name) is None:
            write_state(connection, name, value)


@contextmanager
def _exclusive(engine: Engine) -> Iterator[Connection]:
    with begin_write(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK_NUMBER})
            yield connection
        elif engine.dialect.name == "sqlite":
            yield connection
        else:
            got = connection.scalar(
                text("SELECT GET_LOCK(:name, :seconds)"), {"name": _LOCK_NAME, "seconds": _LOCK_SECONDS}
            )
            if got != 1:
                raise LockedError(
                    f"another process changes the schema of {name_of(engine)} since {_LOCK_SECONDS} seconds",
                    hint="wait, then repeat",
                )
            try:
                yield connection
            finally:
                with suppress(SQLAlchemyError):  # a broken connection holds no lock
                    connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": _LOCK_NAME})
