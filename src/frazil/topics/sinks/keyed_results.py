"""What came of the tasks of a keyed table's batch: their reports, or an error that names the files to discard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from frazil.errors import FrazilError, UnavailableError, first_line
from frazil.tables.writing.data_files import discard_files
from frazil.topics.sinks.jobs import TasksFailedError
from frazil.topics.sinks.keyed_tasks import TaskReport, read_reports

if TYPE_CHECKING:
    from pyiceberg.table import Table


def checked_reports(rows: Sequence[Any], wanted: int | None) -> list[TaskReport]:
    """Returns the reports of all tasks.

    Raises:
        TasksFailedError: one has failed; the others' files are of no use.
    """
    found = read_reports(bytes(row.report) for row in rows)
    reports = [r for r in found if isinstance(r, TaskReport)]
    failed = [r for r in found if isinstance(r, FrazilError)]
    if not failed and wanted is not None and len(reports) != wanted:
        failed = [UnavailableError(f"{len(reports)} of {wanted} tasks have a result")]
    if failed:
        raise TasksFailedError(failed[0], [r.written for r in reports])
    return reports


def spark_failed(error: Exception) -> FrazilError:
    return UnavailableError(
        "Spark could not run the batch", cause=first_line(error), hint="look at Spark's executors and their log"
    )


@contextmanager
def discarding_failed(table: Table) -> Iterator[None]:
    """Discards the files of the tasks inside the block if one of them fails, as the engine does within a batch."""
    try:
        yield
    except TasksFailedError as error:
        discard_files(table.io, [path for w in error.written for path in w.paths()])
        raise error.error from error
    except FrazilError:
        raise
    except Exception as error:  # Spark's errors have no base of their own
        raise spark_failed(error) from error


@contextmanager
def with_reports(reports: list[TaskReport]) -> Iterator[None]:
    """Adds to errors inside the block the files that earlier tasks of the batch have written."""
    try:
        yield
    except TasksFailedError as failed:
        raise TasksFailedError(failed.error, failed.written + [r.written for r in reports]) from failed
    except FrazilError as error:
        raise TasksFailedError(error, [r.written for r in reports]) from error
    except Exception as error:  # Spark's errors have no base of their own
        raise TasksFailedError(spark_failed(error), [r.written for r in reports]) from error
