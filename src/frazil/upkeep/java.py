"""Iceberg for Java in Spark's JVM: tables to commit to, and the translation of its errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from frazil.errors import (
    ConflictError,
    CredentialsError,
    FrazilError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    first_line,
)
from frazil.spark.session import activate_session
from frazil.tables import CommitUnknownError
from frazil.tables.properties import require_no_replica

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from frazil.upkeep.context import UpkeepContext

#: By names of Java classes in the chain of causes; the first row with a match decides.
_KINDS: tuple[tuple[tuple[str, ...], type[FrazilError], str], ...] = (
    (
        ("CommitStateUnknownException",),
        CommitUnknownError,
        "look whether it landed: frazil table snapshots TABLE",
    ),
    (
        ("CommitFailedException", "ValidationException"),
        ConflictError,
        "another writer was faster: try again",
    ),
    (("NotAuthorizedException",), CredentialsError, "look at catalog.token, catalog.credential and the s3 keys"),
    (("ForbiddenException", "AccessDeniedException"), NotAllowedError, "ask for the right to write this table"),
    (("NoSuchTableException", "NoSuchNamespaceException"), NotFoundError, "frazil table list"),
    (("UnsupportedOperationException", "BadRequestException"), UnsupportedError, "see docs/catalogs.md"),
    (
        ("ServiceUnavailableException", "ServiceFailureException", "ConnectException", "UnknownHostException"),
        UnavailableError,
        "look whether catalog and storage answer: frazil doctor",
    ),
    # A file of the plan is gone: it was replaced, and its grace has expired.
    (("NotFoundException", "FileNotFoundException", "NoSuchKeyException"), ConflictError, "try again"),
)
_MESSAGES: tuple[tuple[str, type[FrazilError], str], ...] = (
    ("Status Code: 403", NotAllowedError, "look at the rights of the s3 keys"),
    ("Status Code: 401", CredentialsError, "look at the s3 keys"),
    ("Permission denied", NotAllowedError, "look at the rights of the table's folder"),
    ("Unable to execute HTTP request", UnavailableError, "look at s3.endpoint"),
    # As executors report it.
    ("exceptions.NotFoundException", ConflictError, "try again"),
    ("FileNotFoundException", ConflictError, "try again"),
    ("NoSuchKeyException", ConflictError, "try again"),
)
_DEPTH = 12


def load(context: UpkeepContext, table: Table) -> Any:
    """Returns the table in Java as it is now, whether or not Spark's catalog caches tables."""
    require_no_replica(table)
    spark = context.spark()
    # Iceberg's actions use the session that is active in their thread, and threads of a pipeline have none.
    activate_session(spark)
    with translated(table):
        found = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            spark._jsparkSession, context.sql_name(table)
        )
        if spark.conf.get(f"spark.sql.catalog.{context.catalog.name}.cache-enabled", "true") != "false":
            found.refresh()
        return found


def forget(context: UpkeepContext, table: Table) -> None:
    """Refreshes the table in Spark, in case its rows are cached (`CACHE TABLE`)."""
    spark = context.spark()
    if not spark._jsparkSession.sharedState().cacheManager().isEmpty():
        spark.catalog.refreshTable(context.sql_name(table))


def actions(jvm: Any, session: SparkSession) -> Any:
    """Returns Iceberg's actions in a session."""
    return jvm.org.apache.iceberg.spark.actions.SparkActions.get(session._jsparkSession)


def runner_of(action: Any) -> Any:
    """Returns the part of an action that rewrites one group of files.

    An action commits all that it plans at once, however much that is. Its parts are public except for this one.
    """
    field = action.getClass().getDeclaredField("runner")
    field.setAccessible(True)
    return field.get(action)


def java_map(jvm: Any, values: Mapping[str, object]) -> Any:
    made = jvm.java.util.HashMap()
    for key, value in values.items():
        made.put(key, str(value).lower() if isinstance(value, bool) else str(value))
    return made


def items(iterable: Any) -> Iterator[Any]:
    """Iterates over any Java Iterable; closes one that is Closeable after its last item."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


@contextmanager
def translated(table: Table) -> Iterator[None]:
    """Translates errors of Java and Spark inside the block.

    Raises:
        CommitUnknownError: a commit got no reply. It may have landed.
        ConflictError: another writer committed first. Nothing of ours is in the table.
        NotAllowedError, UnsupportedError, UnavailableError, NotFoundError: as Java reports.
        FrazilError: anything else, with Java's message.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise failure(error, ".".join(table.name())) from error


def failure(error: Exception, name: str) -> FrazilError:
    """Translates a Java error, which py4j passes on with its chain of causes."""
    causes = list(_causes(error))
    for kinds, ours, hint in _KINDS:
        for kind, text in causes:
            if kind in kinds:
                return ours(f"{name}: {_first_sentence(text) or kind}", cause="", hint=hint)
    whole = "\n".join(text for _, text in causes)
    for words, ours, hint in _MESSAGES:
        if words in whole:
            return ours(f"{name}: {_first_sentence(whole)}", cause="", hint=hint)
    kind, text = causes[-1] if causes else (type(error).__name__, first_line(error))
    return FrazilError(
        f"{name}: Spark failed: {_first_sentence(text) or kind}", cause="", hint="the same with -v shows the stack"
    )


def _causes(error: Exception) -> Iterator[tuple[str, str]]:
    """Yields class and message of a Java error and of its causes, the outermost first."""
    current = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_DEPTH):
        if current is None:
            return
        yield current.getClass().getSimpleName(), str(current.getMessage() or "")
        current = current.getCause()


def _first_sentence(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else ""
