"""The errors of libraries, in our words."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing

import pytest
import sqlalchemy
from pyiceberg.exceptions import CommitStateUnknownException

from frazil.catalogs import open_catalog, translated
from frazil.catalogs.failures import translate
from frazil.errors import FrazilError, IntegrityError, LockedError, NotAllowedError, UnavailableError
from frazil.settings import CatalogSettings, load_settings


@pytest.fixture
def embedded(tmp_path) -> CatalogSettings:
    return load_settings(flags={"home": str(tmp_path)}, environ={}).catalog()


def test_a_name_with_a_telling_word_does_not_decide_what_went_wrong(embedded):
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(FrazilError) as error, translated(embedded):
        connection.execute(sqlalchemy.text("SELECT * FROM gone WHERE n = :n"), {"n": "locked_readonly_full_busy"})
    assert type(error.value) is FrazilError
    assert "no such table" in (error.value.cause or "")


def test_a_database_that_another_holds_is_locked(embedded, tmp_path):
    file = tmp_path / "held.db"
    with closing(sqlite3.connect(file)) as holder:
        holder.execute("CREATE TABLE t (x)")
        holder.execute("BEGIN EXCLUSIVE")
        engine = sqlalchemy.create_engine(f"sqlite:///{file}?timeout=0")
        with pytest.raises(LockedError, match="locked by another process"), translated(embedded):
            engine.connect().execute(sqlalchemy.text("SELECT * FROM t"))


def test_a_database_that_cannot_be_opened_is_not_allowed(embedded, tmp_path):
    with pytest.raises(NotAllowedError), translated(embedded):
        sqlite3.connect(tmp_path)


def test_a_database_that_may_not_be_written_is_not_allowed(embedded, tmp_path):
    open_catalog(embedded)
    reader = sqlite3.connect(f"file:{tmp_path / 'catalog.db'}?mode=ro", uri=True)
    with closing(reader), pytest.raises(NotAllowedError), translated(embedded):
        reader.execute("DELETE FROM iceberg_tables")


def test_a_file_that_is_no_database_is_an_integrity_error(embedded, tmp_path):
    (tmp_path / "catalog.db").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(IntegrityError, match="damaged"):
        open_catalog(embedded)


def test_a_full_disk_is_told(embedded, tmp_path):
    with closing(sqlite3.connect(tmp_path / "small.db")) as small, pytest.raises(UnavailableError, match="full"):
        small.execute("PRAGMA max_page_count = 2")
        with translated(embedded):
            small.executescript("CREATE TABLE a (x); CREATE TABLE b (x); CREATE TABLE c (x);")


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "no space left"),
        (
            OSError("When uploading part for key 'k' in bucket 'b': AWS Error SLOW_DOWN during UploadPart"),
            "is overloaded",
        ),
        (
            OSError("When reading information for key 'k': AWS Error UNKNOWN (HTTP status 503) during HeadObject"),
            "is overloaded",
        ),
        (
            OSError("When reading key 'k': AWS Error UNKNOWN (HTTP status 503): HTTP response code: 503"),
            "is overloaded",
        ),
    ],
)
def test_storage_that_asks_for_patience_or_room_is_away_for_now(embedded, theirs, told):
    error = translate(theirs, embedded)
    assert isinstance(error, UnavailableError)
    assert told in error.message
    assert error.hint


def test_a_commit_of_unknown_outcome_is_not_tried_again_blindly(embedded):
    error = translate(CommitStateUnknownException("Gateway timeout"), embedded)
    assert type(error) is FrazilError
    assert not error.retryable
    assert "outcome of the commit is unknown" in error.message
    assert "frazil table snapshots" in (error.hint or "")
