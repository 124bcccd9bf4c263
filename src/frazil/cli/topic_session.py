"""What the topic commands share: the log, wherever it is, the tables, and plans that somebody has to confirm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, Run
from frazil.errors import UsageError

if TYPE_CHECKING:
    from frazil.log.protocol import LogAccess
    from frazil.settings import Settings
    from frazil.tables.store import LazyStore

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="the topic's name")]
Yes = Annotated[bool, typer.Option("--yes", help="confirm")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="only show what would be done")]

_SECTIONS = (*CATALOG_SECTIONS, "log", "topics")


@dataclass(frozen=True)
class Session:
    settings: Settings
    access: LogAccess
    store: LazyStore


@contextmanager
def session(run: Run, catalog: str | None = None) -> Iterator[Session]:
    """The log, at a broker or opened here, which is said aloud; and the tables, opened when they are needed."""
    from frazil.tables.store import LazyStore
    from frazil.topics.connection import connect

    settings = run.settings(*_SECTIONS)
    with (
        LazyStore(settings, catalog) as store,
        connect(settings, note=lambda text: run.printer.note(f"note: {text}"), catalog=catalog) as access,
    ):
        yield Session(settings, access, store)


def settings_of(run: Run) -> Settings:
    return run.settings(*_SECTIONS)


@contextmanager
def confirmed(run: Run, plan: Mapping[str, Any], *, yes: bool, dry_run: bool, what: str) -> Iterator[bool]:
    """Shows a plan, and says whether it is to be done. JSON comes when it is done: it says so.

    Raises:
        UsageError: neither --yes nor --dry-run was given.
    """
    if yes and dry_run:
        raise UsageError("--yes and --dry-run exclude each other", hint="give one of them")
    if not run.printer.json_output:
        run.printer.record(plan)
    if not yes and not dry_run:
        if run.printer.json_output:
            run.printer.json({**plan, "done": False})
        raise UsageError(
            f"nothing was done: {what} requires --yes",
            hint="run the same command with --yes, or with --dry-run for a preview",
        )
    yield yes
    if run.printer.json_output:
        run.printer.json({**plan, "done": yes})
