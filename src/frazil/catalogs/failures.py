"""Turns the many errors of PyIceberg, requests, SQLAlchemy, boto3 and Thrift into ours."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from frazil.errors import (
    ConfigError,
    ConflictError,
    CredentialsError,
    FrazilError,
    IntegrityError,
    LockedError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    first_line,
)
from frazil.settings import CatalogSettings

_WRONG_KEYS = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ACCESS_DENIED",
    "AccessDenied",
    "UnrecognizedClient",
    "Forbidden",
)
_AWAY = ("NETWORK_CONNECTION", "Could not connect", "ConnectTimeout", "curlCode", "timed out", "Connection refused")
#: It answers, and asks for patience. An answer to HEAD has no body, and so only a number.
_BUSY = (
    "SLOW_DOWN", "SlowDown", "SERVICE_UNAVAILABLE", "INTERNAL_FAILURE", "HTTP response code: 50", "HTTP status 50",
    "HTTP status 429",
)  # fmt: skip


@contextmanager
def translated(settings: CatalogSettings) -> Iterator[None]:
    """Translates errors of a catalog or its storage within this block into `FrazilError`."""
    try:
        yield
    except FrazilError:
        raise
    except Exception as error:  # the libraries have no common base
        ours = translate(error, settings)
        if ours is None:
            raise
        raise ours from error


def translate(error: Exception, settings: CatalogSettings) -> FrazilError | None:
    """Translates an error; None if a user cannot act on it."""
    return _from_pyiceberg(error, settings) or _from_network(error, settings) or _from_files(error, settings)


def _from_pyiceberg(error: Exception, settings: CatalogSettings) -> FrazilError | None:
    from pyiceberg import exceptions as theirs

    text = first_line(error)
    unauthorized = (theirs.UnauthorizedError, theirs.AuthorizationExpiredError, theirs.OAuthError)
    signature = isinstance(error, theirs.ForbiddenError) and "signature" in text.lower()
    if isinstance(error, unauthorized) or signature or "invalid_client" in text:
        return _refused(settings)
    if isinstance(error, theirs.CommitStateUnknownException):
        return FrazilError(
            f"catalog '{settings.name}': the outcome of the commit is unknown",
            cause=text,
            hint="check frazil table snapshots TABLE before you try again",
        )
    if type(error) is theirs.RESTError and "Not Found" in text:
        return ConfigError(
            f"no Iceberg REST catalog found at {settings.uri}",
            cause=text,
            hint="include the path: http://host:19120/iceberg (Nessie), http://host:8181/api/catalog (Polaris)",
        )
    for kinds, ours, hint in (
        (
            (theirs.NoSuchTableError, theirs.NoSuchViewError, theirs.NoSuchNamespaceError),
            NotFoundError,
            "frazil table list",
        ),
        (theirs.TableAlreadyExistsError, ConflictError, "choose another name, or drop it first"),
        (theirs.NamespaceAlreadyExistsError, ConflictError, "choose another name, or drop it first"),
        (theirs.NamespaceNotEmptyError, ConflictError, "drop its tables first"),
        (
            (theirs.CommitFailedException, theirs.ValidationException),
            ConflictError,
            "another writer committed first: try again",
        ),
        (theirs.ForbiddenError, NotAllowedError, "request the permission, or use other credentials"),
        (
            (theirs.ServiceUnavailableError, theirs.ServerError),
            UnavailableError,
            "check the server's log; frazil doctor",
        ),
        ((theirs.BadRequestError, theirs.ValidationError), UsageError, "frazil config show catalog"),
        (NotImplementedError, UnsupportedError, "see docs/catalogs.md"),
    ):
        if isinstance(error, kinds):
            return ours(f"catalog '{settings.name}': {text}", cause="", hint=hint)
    return None


def _refused(settings: CatalogSettings) -> CredentialsError:
    return CredentialsError(
        f"the catalog at {settings.uri or settings.endpoint or 'AWS'} rejects our credentials",
        hint="check catalog.token, catalog.credential or the s3 keys: frazil config show",
    )


def _from_network(error: Exception, settings: CatalogSettings) -> FrazilError | None:
    module = type(error).__module__.split(".")[0]
    where = settings.uri or settings.endpoint or "AWS"
    if module in ("requests", "urllib3", "thrift") or isinstance(error, (ConnectionError, TimeoutError)):
        return UnavailableError(
            f"the catalog at {where} does not respond", cause=first_line(error), hint="frazil doctor"
        )
    if module == "botocore":
        text = str(error)
        if "NoCredentials" in type(error).__name__ or any(word in text for word in _WRONG_KEYS):
            return _refused(settings)
        return UnavailableError(
            f"AWS ({where}) does not respond as expected", cause=first_line(error), hint="frazil doctor"
        )
    if module == "sqlalchemy" or isinstance(error, sqlite3.Error):
        return _from_sqlite(error, settings)
    return None


def _from_sqlite(error: Exception, settings: CatalogSettings) -> FrazilError:
    """Translates by SQLite's error code: SQLAlchemy's text repeats values, and a table may be named 'locked'."""
    where, cause = f"the embedded catalog {settings.uri}", first_line(error)
    # The low byte says what it is; the rest, which of its kinds.
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LockedError(
            f"{where} is locked by another process", cause=cause, hint="wait until that process is done, then try again"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return NotAllowedError(f"cannot write to {where}", cause=cause, hint="check the permissions of the file")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return IntegrityError(
            f"{where} is damaged, or is not an SQLite file", cause=cause, hint="restore it from a backup"
        )
    if code == sqlite3.SQLITE_FULL:
        return UnavailableError(f"{where}: the disk is full", cause=cause, hint="free some space, then try again")
    return FrazilError(f"{where} failed", cause=cause, hint="frazil doctor")


def _from_files(error: Exception, settings: CatalogSettings) -> FrazilError | None:
    """Errors of the files that a catalog points to; PyArrow raises them as OSError with AWS's words in the text."""
    if not isinstance(error, OSError):
        return None
    text = str(error)
    s3 = settings.s3
    where = (
        f"the storage at {(s3.endpoint if s3 else None) or 'AWS S3'}"
        if "AWS" in text or "S3" in text
        else "the storage"
    )
    if any(word in text for word in _WRONG_KEYS):
        return CredentialsError(
            f"{where} rejects our credentials", cause=first_line(error), hint="check s3.access_key and s3.secret_key"
        )
    if any(word in text for word in _AWAY):
        return UnavailableError(
            f"{where} does not respond", cause=first_line(error), hint="check s3.endpoint; frazil doctor"
        )
    if any(word in text for word in _BUSY):
        return UnavailableError(f"{where} is overloaded or failing", cause=first_line(error), hint="frazil doctor")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UnavailableError(
            f"no space left for a file of the table in {where}", cause=first_line(error), hint="free some space"
        )
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"a file of the table is missing: {first_line(error)}", hint="frazil table show")
    if isinstance(error, PermissionError):
        return NotAllowedError(
            f"cannot write to {where}", cause=first_line(error), hint="check the permissions of the folder"
        )
    return None
