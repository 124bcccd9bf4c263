"""Translates the errors of databases into Frazil's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from frazil.errors import (
    CredentialsError,
    FrazilError,
    IntegrityError,
    LockedError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
)

Failure = Literal[
    "lost", "deadlock", "busy", "rejected", "not_allowed", "no_database", "full", "read_only", "damaged", "other"
]

_MYSQL: dict[int, Failure] = {
    **dict.fromkeys((1040, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1927), "lost"),
    **dict.fromkeys((2002, 2003, 2006, 2013, 2014, 2055, 4031), "lost"),
    1205: "busy",
    1213: "deadlock",
    **dict.fromkeys((1044, 1142, 1143, 1227), "not_allowed"),
    **dict.fromkeys((1021, 1114), "full"),
    **dict.fromkeys((1290, 1836), "read_only"),
    1045: "rejected",
    1698: "rejected",
    1049: "no_database",
}
_POSTGRES: dict[str, Failure] = {
    "40001": "deadlock",
    "40P01": "deadlock",
    "55P03": "busy",
    "42501": "not_allowed",
    "3D000": "no_database",
    "25006": "read_only",
    "53100": "full",
}
_POSTGRES_CLASSES: dict[str, Failure] = {"08": "lost", "57": "lost", "53": "lost", "28": "rejected", "XX": "damaged"}
_SQLITE: tuple[tuple[str, Failure], ...] = (
    ("SQLITE_BUSY", "busy"),
    ("SQLITE_LOCKED", "busy"),
    ("SQLITE_FULL", "full"),
    ("SQLITE_READONLY", "read_only"),
    ("SQLITE_CORRUPT", "damaged"),
    ("SQLITE_NOTADB", "damaged"),
    ("SQLITE_CANTOPEN", "not_allowed"),
    ("SQLITE_PERM", "not_allowed"),
    ("SQLITE_IOERR", "lost"),
)


def classify(error: BaseException) -> Failure:
    """Returns what kind of failure an error of a driver or of SQLAlchemy is."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(error, PoolTimeoutError):
        return "busy"
    if (name := getattr(original, "sqlite_errorname", None)) is not None:
        return next((failure for start, failure in _SQLITE if str(name).startswith(start)), "other")
    first: Any = original.args[0] if original is not None and original.args else None
    if isinstance(first, int):
        return _MYSQL.get(first, "other")
    if isinstance(first, dict):
        code = str(first.get("C", ""))
        return _POSTGRES.get(code) or _POSTGRES_CLASSES.get(code[:2], "other")
    if isinstance(original, OSError) or (isinstance(error, DBAPIError) and error.connection_invalidated):
        return "lost"
    # Drivers raise these without a code when the connection breaks or cannot be made.
    return "lost" if type(original).__name__ in ("InterfaceError", "OperationalError") else "other"


@contextmanager
def translate_errors(name: str) -> Iterator[None]:
    """Raises Frazil's errors in place of those of SQLAlchemy.

    Args:
        name: the database, without a password.
    """
    try:
        yield
    except SQLAlchemyError as error:
        raise _translate(error, name) from error


def unavailable(name: str, cause: str) -> UnavailableError:
    return UnavailableError(
        f"cannot reach the database {name}", cause=cause, hint="check that it runs, and database.url; then repeat"
    )


def _translate(error: SQLAlchemyError, name: str) -> FrazilError:
    cause = _text(error)
    match classify(error):
        case "lost":
            return unavailable(name, cause)
        case "busy" | "deadlock":
            return LockedError(f"the database {name} is locked by another writer", cause=cause, hint="repeat it")
        case "rejected":
            return CredentialsError(
                f"the database {name} rejects our credentials",
                cause=cause,
                hint="check user and password: database.url",
            )
        case "not_allowed":
            return NotAllowedError(f"the database {name} does not let us in", cause=cause, hint="check its rights")
        case "no_database":
            return NotFoundError(
                f"the database {name} does not exist", cause=cause, hint="create it: CREATE DATABASE …"
            )
        case "full":
            return UnavailableError(f"the disk of the database {name} is full", cause=cause, hint="free space; repeat")
        case "read_only":
            return NotAllowedError(f"the database {name} is read-only", cause=cause, hint="check owner and mode")
        case "damaged":
            return IntegrityError(f"the database {name} is damaged", cause=cause, hint="restore it from a backup")
        case "other":
            return FrazilError(f"the database {name} failed", cause=cause)


def _text(error: SQLAlchemyError) -> str:
    """The driver's own words: SQLAlchemy adds the statement and its values."""
    original = error.orig if isinstance(error, DBAPIError) else error
    args = original.args if original is not None else ()
    if args and isinstance(args[0], dict):
        return str(args[0].get("M", args[0]))
    if len(args) > 1 and isinstance(args[0], int):
        return f"{args[1]} [{args[0]}]"
    return (str(original).strip().splitlines() or [type(original).__name__])[0]
