"""Connections to the database of a document store."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, Literal
from weakref import WeakKeyDictionary

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from frazil.documents.sql.failures import translate_errors, unavailable
from frazil.errors import ConfigError, NotAllowedError, SetupError, translate_os_error
from frazil.settings.permissions import make_private_folder, open_private

#: How long a write waits for the others.
LOCK_WAIT_SECONDS = 30.0
CONNECT_SECONDS = 10
_CACHE_KIB = 16_384
_WAL_LIMIT = 64 * 1024 * 1024
#: What drivers the kinds of URLs need, and the extra that brings them.
_DRIVERS = {
    "mysql": ("mysql+pymysql", "pymysql", "mysql"),
    "mariadb": ("mysql+pymysql", "pymysql", "mysql"),
    "postgresql": ("postgresql+pg8000", "pg8000", "postgres"),
    "postgres": ("postgresql+pg8000", "pg8000", "postgres"),
}
_BEGIN = "frazil_begin"
Synchronous = Literal["OFF", "NORMAL", "FULL"]

_locks: WeakKeyDictionary[Engine, Lock] = WeakKeyDictionary()


def open_engine(url: str) -> Engine:
    """Returns the engine of a URL of SQLite, MySQL or PostgreSQL.

    Nothing is connected yet. A SQLite file that is missing is created, for this user only.

    Raises:
        ConfigError: the URL is none of these.
        SetupError: the driver is not installed.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise _wrong_url(url) from None
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
            raise ConfigError("database.url names no file for SQLite", hint="such as sqlite:///documents.db")
        return open_sqlite(Path(parsed.database).expanduser())
    return _open_server(parsed, url)


def open_sqlite(file: Path, *, synchronous: Synchronous = "FULL", read_only: bool = False) -> Engine:
    """Returns the engine of a SQLite file in WAL mode, which many processes may use at once.

    Args:
        file: created if it is missing, for this user only.
        synchronous: FULL: a commit survives a power failure. The others are for files that can be built again.
        read_only: never writes or creates the file.
    """
    file = Path(os.path.abspath(file))  # noqa: PTH100 - resolve() would follow links
    if not read_only:
        try:
            make_private_folder(file.parent)
            os.close(open_private(file, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise translate_os_error(error, str(file)) or NotAllowedError(
                f"cannot create {file}", cause=str(error), hint="choose another file: database.url"
            ) from error
    made = create_engine(
        "sqlite+pysqlite://",
        creator=lambda: _connect_sqlite(file, synchronous, read_only),
        poolclass=QueuePool,
        pool_size=8,
        max_overflow=-1,
        pool_reset_on_return="rollback",
    )
    made = _with_name(made, URL.create("sqlite", database=str(file)))
    event.listen(made, "begin", _begin_sqlite)
    return made


@contextmanager
def begin_write(engine: Engine) -> Iterator[Connection]:
    """A transaction that is the only writing one, if all others begin this way too.

    Threads of this process queue here. Processes queue at SQLite's own lock; on servers the caller locks a row.
    """
    with _locks.setdefault(engine, Lock()), connect(engine) as connection:
        connection.execution_options(**{_BEGIN: "IMMEDIATE"})
        with connection.begin():
            if engine.dialect.name == "postgresql":
                # Writers look rows up by their keys. Before its first ANALYZE a table would be read as a whole.
                connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            yield connection


@contextmanager
def connect(engine: Engine) -> Iterator[Connection]:
    """A connection for reads. On SQLite each statement sees the newest state; see `snapshot` for several."""
    with translate_errors(name_of(engine)), _open(engine) as connection:
        yield connection


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """A connection whose statements all see the same state."""
    with connect(engine) as connection:
        if engine.dialect.name == "sqlite":
            connection.execution_options(**{_BEGIN: "DEFERRED"})
        else:
            connection.execution_options(isolation_level="REPEATABLE READ")
        yield connection


def name_of(engine: Engine) -> str:
    """Returns the URL without its password, for messages."""
    return engine.url.render_as_string(hide_password=True)


def kind_of(engine: Engine) -> Literal["sqlite", "mysql", "postgresql"]:
    name = engine.dialect.name
    if name == "sqlite":
        return "sqlite"
    return "postgresql" if name == "postgresql" else "mysql"


def _open(engine: Engine) -> Connection:
    try:
        return engine.connect()
    except OSError as error:  # pg8000 lets it pass
        raise unavailable(name_of(engine), str(error)) from error
    except RuntimeError as error:  # a driver lacks something of its own for the server's way to authenticate
        raise SetupError(
            f"cannot log in to {name_of(engine)}",
            cause=str(error),
            hint="pip install 'pymysql[rsa]'; or connect by TLS",
        ) from error


def _connect_sqlite(file: Path, synchronous: Synchronous, read_only: bool) -> sqlite3.Connection:
    made = sqlite3.connect(
        f"{file.as_uri()}?mode={'ro' if read_only else 'rw'}",
        uri=True,
        timeout=LOCK_WAIT_SECONDS,
        isolation_level=None,  # transactions begin where we say so
        check_same_thread=False,
    )
    try:
        if not read_only:
            made.execute("PRAGMA journal_mode = WAL")
            made.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
        made.execute(f"PRAGMA synchronous = {synchronous}")
        made.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        made.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        with suppress(sqlite3.Error):
            made.close()
        raise
    return made


def _begin_sqlite(connection: Connection) -> None:
    mode = connection.get_execution_options().get(_BEGIN)
    if mode is not None:
        connection.exec_driver_sql(f"BEGIN {mode}")


def _with_name(engine: Engine, url: URL) -> Engine:
    engine.url = url
    return engine


def _open_server(url: URL, given: str) -> Engine:
    backend = url.drivername.partition("+")[0]
    if backend not in _DRIVERS:
        raise _wrong_url(given)
    driver, module, extra = _DRIVERS[backend]
    if url.drivername == backend:
        if find_spec(module) is None:
            raise SetupError(
                f"the driver for {backend} is not installed",
                cause=f"no module {module}",
                hint=f"pip install 'frazil[{extra}]'",
            )
        url = url.set(drivername=driver)
    try:
        made = create_engine(
            url,
            isolation_level="READ COMMITTED",
            pool_size=8,
            max_overflow=24,
            pool_pre_ping=True,
            pool_recycle=1800,
            connect_args=_connect_args(url.drivername),
        )
    except (ArgumentError, NoSuchModuleError, ImportError, TypeError) as error:
        raise _wrong_url(given) from error
    if _connect_args(url.drivername):
        event.listen(made, "connect", _wait_for_answers)
    return made


def _wait_for_answers(connection: Any, record: object) -> None:
    """Ends the time limit of connecting, which would hold for each statement too."""
    if hasattr(connection, "_usock"):  # pg8000
        connection._usock.settimeout(None)
    else:
        connection._read_timeout = None


def _connect_args(driver: str) -> dict[str, Any]:
    if driver == "mysql+pymysql":
        strict = "SET SESSION sql_mode = 'STRICT_ALL_TABLES', SESSION innodb_lock_wait_timeout = 30"
        limits = {"connect_timeout": CONNECT_SECONDS, "read_timeout": CONNECT_SECONDS}
        return {**limits, "charset": "utf8mb4", "init_command": strict}
    return {"timeout": CONNECT_SECONDS, "tcp_keepalive": True} if driver == "postgresql+pg8000" else {}


def _wrong_url(url: str) -> ConfigError:
    scheme = url.partition("://")[0] if "://" in url else url[:40]
    return ConfigError(
        f"database.url is invalid: {scheme!r} is no store of documents",
        hint="sqlite:///FILE, mysql://USER:PASSWORD@HOST/DATABASE, postgresql://USER:PASSWORD@HOST/DATABASE or iceberg",
    )
