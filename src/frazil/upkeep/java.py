"""Iceberg for Java, by the JVM that Spark runs in: a table as it commits there, and its errors in our words."""

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

#: By the names of Java's classes, as they stand in the chain of causes; the first line that has one decides.
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
    # A file of the plan is gone: somebody replaced it, and its time was over.
    (("NotFoundException", "FileNotFoundException", "NoSuchKeyException"), ConflictError, "try again"),
)
_MESSAGES: tuple[tuple[str, type[FrazilError], str], ...] = (
    ("Status Code: 403", NotAllowedError, "look at the rights of the s3 keys"),
    ("Status Code: 401", CredentialsError, "look at the s3 keys"),
    ("Permission denied", NotAllowedError, "look at the rights of the table's folder"),
    ("Unable to execute HTTP request", UnavailableError, "look at s3.endpoint"),
    # As executors tell it.
    ("exceptions.NotFoundException", ConflictError, "try again"),
    ("FileNotFoundException", ConflictError, "try again"),
    ("NoSuchKeyException", ConflictError, "try again"),
)
_DEPTH = 12


def load(context: UpkeepContext, table: Table) -> Any:
    """The table in Java to be changed, as it is now, whether or not Spark's catalog keeps tables in a cache."""
    require_no_replica(table)
    spark = context.spark()
    # Iceberg's actions ask for the session that is active in their thread, and one of a pipeline has none.
    activate_session(spark)
    with translated(table):
        found = spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            spark._jsparkSession, context.sql_name(table)
        )
        if spark.conf.get(f"spark.sql.catalog.{context.catalog.name}.cache-enabled", "true") != "false":
            found.refresh()
        return found


def forget(context: UpkeepContext, table: Table) -> None:
    """Has Spark look at the table anew where somebody cached its rows (`CACHE TABLE`)."""
    spark = context.spark()
    if not spark._jsparkSession.sharedState().cacheManager().isEmpty():
        spark.catalog.refreshTable(context.sql_name(table))


def actions(jvm: Any, session: SparkSession) -> Any:
    """Iceberg's actions in a session."""
    return jvm.org.apache.iceberg.spark.actions.SparkActions.get(session._jsparkSession)


def runner_of(action: Any) -> Any:
    """The part of an action that writes one group of files anew.

    An action takes all that it plans into one commit, however much that is. Its parts are public but for this one.
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
    """Of any Java Iterable. One that is Closeable ends with its last item."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


@contextmanager
def translated(table: Table) -> Iterator[None]:
    """Within this block errors of Java and Spark come out as ours.

    Raises:
        CommitUnknownError: no answer came to a commit. It may have landed.
        ConflictError: another writer was faster. Nothing of ours is in the table.
        NotAllowedError, UnsupportedError, UnavailableError, NotFoundError: as they say.
        FrazilError: anything else, with Java's own words.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise failure(error, ".".join(table.name())) from error


def failure(error: Exception, name: str) -> FrazilError:
    """Ours for one of Java's, which py4j hands on with its chain of causes."""
    causes = list(_causes(error))
    for kinds, ours, hint in _KINDS:
        for kind, text in causes:
            if kind in kinds:
                return ours(f"{name}: {_words(text) or kind}", cause="", hint=hint)
    whole = "\n".join(text for _, text in causes)
    for words, ours, hint in _MESSAGES:
        if words in whole:
            return ours(f"{name}: {_words(whole)}", cause="", hint=hint)
    kind, text = causes[-1] if causes else (type(error).__name__, first_line(error))
    return FrazilError(
        f"{name}: Spark failed: {_words(text) or kind}", cause="", hint="the same with -v shows the stack"
    )


def _causes(error: Exception) -> Iterator[tuple[str, str]]:
    """Class and message of a Java error and of all that led to it, the outermost first."""
    current = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_DEPTH):
        if current is None:
            return
        yield current.getClass().getSimpleName(), str(current.getMessage() or "")
        current = current.getCause()


def _words(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0].strip() if lines else ""
