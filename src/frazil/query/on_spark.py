"""A statement on Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from frazil.errors import (
    CredentialsError,
    FrazilError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    first_line,
)
from frazil.settings import Settings
from frazil.spark import spark_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


_REFUSED = ("NotAuthorizedException", "ForbiddenException", "Status Code: 403", "Status Code: 401")
_AWAY = ("ConnectException", "UnknownHostException", "Unable to execute HTTP request")


def run_on_spark(
    statement: str, settings: Settings, catalog: str, limit: int | None, session: SparkSession | None = None
) -> tuple[pa.Table, float, bool]:
    """Runs a statement in a session, or in one that is started for it; with the time it took without that start."""
    with spark_session(settings) if session is None else nullcontext(session) as chosen:
        began = time.perf_counter()
        with spark_errors():
            chosen.catalog.setCurrentCatalog(catalog)
            table, truncated = _collect(chosen, statement, limit)
        return table, time.perf_counter() - began, truncated


def _collect(session: SparkSession, statement: str, limit: int | None) -> tuple[pa.Table, bool]:
    frame = session.sql(statement)
    if limit is None or not frame.columns:
        return frame.toArrow(), False
    table = frame.limit(limit + 1).toArrow()
    return table.slice(0, limit), table.num_rows > limit


@contextmanager
def spark_errors() -> Iterator[None]:
    """Translates Spark's errors within this block, without the JVM's stack."""
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        yield
    except ParseException as error:
        raise UsageError(
            "Spark cannot read this SQL", cause=_with_marked_place(error), hint="docs/sql.md has examples"
        ) from error
    except AnalysisException as error:
        condition = error.getCondition() or ""
        if "NOT_FOUND" in condition:
            raise NotFoundError(_message(error), cause="", hint="frazil table list") from error
        if "UNSUPPORTED" in condition or "NOT_IMPLEMENTED" in condition:
            raise UnsupportedError(_message(error), cause="", hint="see docs/catalogs.md") from error
        raise UsageError(_message(error), cause="", hint="frazil table show TABLE lists the columns") from error
    except (PySparkException, Py4JError) as error:
        raise _failure(error) from error


def _failure(error: Exception) -> FrazilError:
    """Translates a Spark error; failures of catalog and storage are recognised by the class names of Java's errors."""
    text = str(error)
    if any(name in text for name in _REFUSED):
        return CredentialsError(
            "the catalog or the storage rejects our credentials",
            cause=_message(error),
            hint="check catalog.token, catalog.credential and the s3 keys: frazil config show",
        )
    if any(name in text for name in _AWAY):
        return UnavailableError(
            "the catalog or the storage does not respond",
            cause=_message(error),
            hint="check s3.endpoint",
        )
    return FrazilError(
        f"Spark failed: {_message(error)}", cause="", hint="run the same command with -v for Spark's stack trace"
    )


def _message(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip() and "JVM stacktrace" not in line]
    java = next((line.strip() for line in lines if line.strip().startswith(("java.", "org.", ": "))), None)
    return (
        lines[0].strip()
        if lines and not lines[0].startswith("An error occurred")
        else (java or first_line(error)).lstrip(": ")
    )


def _with_marked_place(error: Exception) -> str:
    """Returns the message, and the line of the statement with `^^^` below it if Spark shows one."""
    lines = str(error).splitlines()
    marked = next((i for i, line in enumerate(lines) if line.endswith("^^^") and not line.strip("-^")), None)
    return "\n".join([_message(error), *(lines[marked - 1 : marked + 1] if marked else [])])
