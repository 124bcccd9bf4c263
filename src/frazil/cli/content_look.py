"""`frazil content reconcile`, and what it shares with others that look at a place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run
from frazil.errors import DifferencesError

if TYPE_CHECKING:
    from frazil.content.looking.folder import Folder
    from frazil.content.looking.listing import Place
    from frazil.content.looking.reconcile import Plan
    from frazil.content.looking.work import Work
    from frazil.settings import Settings

PlaceArgument = Annotated[str, typer.Argument(metavar="BUCKET|FOLDER", help="s3://bucket, its name, or a folder")]
PrefixOption = Annotated[str, typer.Option("--prefix", help="only keys that begin with this")]

SECTIONS = (*CATALOG_SECTIONS, "log", "content", "pipeline", "spark")


def reconcile(
    run: Run,
    place: PlaceArgument,
    prefix: PrefixOption = "",
    against: Annotated[
        str, typer.Option(metavar="listing|TABLE", help="list the bucket, or read a table of S3 Inventory or Metadata")
    ] = "listing",
    apply: Annotated[bool, typer.Option("--apply", help="repair what differs, after asking the bucket again")] = False,
    first: Annotated[int, typer.Option(min=0, help="differences of each kind that are shown")] = 10,
    catalog: CatalogOption = None,
) -> None:
    """Compare the table with what a bucket or folder really holds: missing, orphaned, mismatched.

    Without --apply it only looks, and ends with exit code 14 where something differs.
    """
    look = apply or against == "listing"
    with place_at(run, place, prefix, look=look) as (settings, there), opened(run, settings, catalog) as work:
        waiting = work.waiting()
        if waiting:
            run.printer.note(f"{waiting:,} messages are in the log and not in the table yet; the comparison lacks them")
        plan, began = work.plan(there, prefix, against=against, first=first)
        told = work.repair(there, plan) if apply and plan.faults else None
    repaired = None if told is None else {"there": told.there, "gone": told.gone}
    summary = {
        "bucket": there.bucket,
        "prefix": prefix,
        "against": against,
        "began_at": began,
        "matching": plan.matching,
        **plan.counts,
        "waiting": waiting,
        "applied": apply,
        "repaired": repaired,
    }
    _show_plan(run, plan, summary)
    if plan.faults and not apply:
        raise DifferencesError(
            f"{plan.faults:,} differences were found in {there.bucket}", hint="the same with --apply"
        )


# -- what they share ---------------------------------------------------------------------------------------------------


@contextmanager
def place_at(
    run: Run, text: str, prefix: str, versions: bool | None = None, *, look: bool = True
) -> Iterator[tuple[Settings, Place]]:
    """The place, looked at before anything is started: a misspelt name changes nothing."""
    from frazil.content.buckets import require_text
    from frazil.content.looking.folder import Folder, check_prefix
    from frazil.content.looking.listing import place_of
    from frazil.topics.sinks.jobs import for_pipeline

    require_text(prefix, "prefix")
    settings = for_pipeline(run.settings(*SECTIONS))
    there = place_of(text, settings, None if versions is None else "all" if versions else "latest", look=look)
    if isinstance(there, Folder):
        check_prefix(prefix)
        say_own(run, there)
    yield settings, there


@contextmanager
def opened(run: Run, settings: Settings, catalog: str | None) -> Iterator[Work]:
    """The log, wherever it is, and one Spark session for all that needs it, started then."""
    from frazil.content.looking.engine import OnDemand
    from frazil.content.looking.work import Work
    from frazil.topics import connect

    def note(text: str) -> None:
        run.printer.note(f"note: {text}")

    with connect(settings, note=note, catalog=catalog) as access, OnDemand(settings, access) as engine:
        yield Work(settings, access, engine, catalog)


def say_own(run: Run, there: Folder) -> None:
    for path in there.own:
        run.printer.note(f"note: {path} is Frazil's own, and is left out")


def _show_plan(run: Run, plan: Plan, summary: dict[str, Any]) -> None:
    if run.printer.json_output:
        run.printer.json({**summary, "first": plan.first})
        return
    run.printer.record(summary)
    for kind, rows in plan.first.items():
        print(f"\n{kind}:")
        run.printer.rows(list(rows[0]) if rows else [], [list(row.values()) for row in rows], none="not shown")
