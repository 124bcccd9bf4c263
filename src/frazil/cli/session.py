"""What commands share that work on tables and their files: options, Ctrl-C, a catalog, and how amounts are shown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.invocation import Run
from frazil.errors import FrazilError, InterruptedByUser, UsageError
from frazil.observe.cancellation import StoppedError

if TYPE_CHECKING:
    from frazil.settings import Settings
    from frazil.upkeep.context import UpkeepContext

#: Seconds after the first Ctrl-C in which a command ends by itself.
_BOUND_S = 60.0

DryRun = Annotated[bool, typer.Option("--dry-run", help="only show what would be done")]


class EngineChoice(StrEnum):
    auto = "auto"
    local = "local"
    spark = "spark"


Engine = Annotated[
    EngineChoice,
    typer.Option("--engine", help="local: threads and processes on this machine; spark: tasks of a cluster"),
]


@contextmanager
def stopping(run: Run) -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets; the second one ends the process."""
    from frazil.cli.stopping import Stopping
    from frazil.spark.jvm import end_at_once

    late = FrazilError(
        f"the command did not exit within {_BOUND_S:g} s", hint="run the same command again: it continues"
    )
    with Stopping(_BOUND_S, lambda: late, kill=end_at_once, json_output=run.printer.json_output) as signals:
        signals.be_gentle()
        try:
            yield signals.asked
        except StoppedError as error:
            raise InterruptedByUser("interrupted", hint="the same command continues where it stopped") from error


@contextmanager
def stoppable(run: Run, settings: Settings, catalog: str | None) -> Iterator[UpkeepContext]:
    """A catalog, until Ctrl-C or SIGTERM."""
    from frazil.upkeep.runs.open_context import open_context

    with stopping(run) as stop, open_context(settings, catalog, stop) as care:
        yield care


def one_of(first: str | None, second: str | None, name: str) -> str | None:
    """Returns the value of something that may be given as an argument or by an option.

    Raises:
        UsageError: both are given, and differ.
    """
    if first is not None and second is not None and first != second:
        raise UsageError(f"{name} is given twice: '{first}' and '{second}'", hint="name it once")
    return second if first is None else first


# -- for people --------------------------------------------------------------------------------------------------------


def shown_time(time: datetime | None) -> str | None:
    return None if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def shown_files(count: int, size: int) -> str:
    from frazil.upkeep.plans.format_amounts import format_count, format_size

    return f"{format_count(count, 'file')}, {format_size(size)}"
