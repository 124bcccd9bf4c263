"""Finds the stores of a migration by kind or URL, and opens them without changing them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from frazil.documents.fingerprint import Fingerprint
from frazil.documents.migration import Readable
from frazil.documents.model import Column, Revision
from frazil.documents.open import open_store, store_url
from frazil.documents.sql.engine import open_engine, open_sqlite
from frazil.documents.sql.migrate import require_schema
from frazil.documents.sql.reads import SqlReads
from frazil.documents.store import Statistics
from frazil.errors import NotFoundError, UsageError
from frazil.settings import Settings

_SERVERS = ("mysql", "postgresql")


def resolve_stores(settings: Settings, source: str, target: str) -> tuple[str, str]:
    """Returns the URLs of two stores that are given as kinds or URLs.

    Raises:
        UsageError: a kind has no URL in the settings, or both are the same store.
    """
    urls = _resolve(settings, source, "--from"), _resolve(settings, target, "--to")
    if _identity(urls[0]) == _identity(urls[1]):
        raise UsageError(
            f"source and target are the same store: {source} and {target}", hint="--to with another kind or URL"
        )
    return urls


def _resolve(settings: Settings, given: str, option: str) -> str:
    own = (settings.model.database.url or "").strip()
    if given == "iceberg" or "://" in given:
        return store_url(settings, given)
    if given == "sqlite":
        return own if own.startswith("sqlite:") else store_url(settings, "sqlite")
    if given in _SERVERS:
        if own.startswith((f"{given}:", f"{given}+")):
            return own
        raise UsageError(
            f"the URL of the {given} store is not known",
            cause="database.url names another store" if own else "database.url is not set",
            hint=f"{option} {given}://USER@HOST/DATABASE, with the password after the user",
        )
    raise UsageError(f"'{given[:80]}' is no store", hint="sqlite, mysql, postgresql, iceberg, or a URL")


def _identity(url: str) -> str:
    file = _sqlite_file(url)
    return str(file.resolve()) if file is not None else url


def _sqlite_file(url: str) -> Path | None:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return None
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return Path(parsed.database).expanduser()


@contextmanager
def open_source(settings: Settings, url: str) -> Iterator[Readable]:
    """Opens a store to read from. A database is not changed, not even to update its schema.

    Raises:
        NotFoundError: it has no documents of Frazil.
        UnsupportedError: another version of Frazil made its schema.
    """
    if url == "iceberg":
        with open_store(settings, url) as store:
            yield store
        return
    file = _sqlite_file(url)
    if file is not None and not file.is_file():
        raise NotFoundError(f"file {file} does not exist", hint="the URL of a database with documents")
    engine = open_engine(url) if file is None else open_sqlite(file, read_only=True)
    try:
        require_schema(engine)
        yield SqlReads(engine, b"")
    finally:
        engine.dispose()


@contextmanager
def open_present(settings: Settings, url: str) -> Iterator[Readable]:
    """Opens a target to see what it has. One that does not exist is not created, and has nothing."""
    with ExitStack() as stack:
        try:
            found: Readable = stack.enter_context(open_source(settings, url))
        except NotFoundError as error:
            if error.__cause__ is not None:  # the database itself does not exist
                raise
            found = _Nothing()
        yield found


class _Nothing:
    """A store that does not exist yet."""

    def columns(self) -> dict[str, Column]:
        return {}

    def get_statistics(self) -> Statistics:
        return Statistics(total_documents=0, total_size_bytes=0, by_provider={}, by_tier={}, by_restore_status={})

    def revisions(self, after: str | None = None) -> Iterator[list[Revision]]:
        yield from ()

    def history_tables(self, after: str | None = None) -> Iterator[pa.Table]:
        yield from ()

    def fingerprint(
        self, progress: Callable[[int], None] = lambda _: None, *, canonical: bool = False, lists: bool = True
    ) -> Fingerprint:
        return Fingerprint()

    def last_change(self) -> datetime | None:
        return None
