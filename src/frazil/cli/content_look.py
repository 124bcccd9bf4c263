"""`frazil content scan` and `reconcile`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run
from frazil.errors import DifferencesError

if TYPE_CHECKING:
    from frazil.content.looking.folder import Folder
    from frazil.content.looking.listing import Place
    from frazil.content.looking.reconcile import Plan
    from frazil.content.looking.state import Tally
    from frazil.content.looking.work import Work
    from frazil.settings import Settings

PlaceArgument = Annotated[str, typer.Argument(metavar="BUCKET|FOLDER", help="s3://bucket, its name, or a folder")]
PrefixOption = Annotated[str, typer.Option("--prefix", help="only keys that begin with this")]

SECTIONS = (*CATALOG_SECTIONS, "log", "content", "pipeline", "spark")


def scan(
    run: Run,
    place: PlaceArgument,
    prefix: PrefixOption = "",
    versions: Annotated[
        bool | None,
        typer.Option(
            "--versions/--no-versions", help="all versions, or only the latest [default: all, if it has some]"
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="end when the rows are in the table")] = True,
    restart: Annotated[bool, typer.Option("--restart", help="begin anew, although a scan has broken off")] = False,
    catalog: CatalogOption = None,
) -> None:
    """Tell the tables of every object that is in a bucket or folder now.

    It runs on Spark, and can be repeated as often as you like. A scan that broke off goes on where it was. What the
    table has and the bucket has not is left alone: that is what `frazil content reconcile` is for.
    """
    with _place(run, place, prefix, versions) as (settings, there), _work(run, settings, catalog) as work:
        with _bar(run) as progress:
            done = work.scan(there, prefix, restart=restart, progress=progress)
        seconds = round(done.seconds, 3)
        summary: dict[str, Any] = {
            "bucket": there.bucket,
            "prefix": prefix,
            "objects": done.tally.objects,
            "bytes": done.tally.bytes,
            "skipped": done.tally.skipped,
            "resumed": done.resumed,
            "listing_s": seconds,
            "objects_per_s": round(done.listed / max(done.seconds, 0.001)),
            "visible_s": None,
            "in_table": None,
        }
        if wait:
            began = time.monotonic()
            work.until_visible(done.tally.end)
            summary["visible_s"] = round(seconds + time.monotonic() - began, 3)
            summary["in_table"] = work.rows(there.bucket, prefix, latest=_only_latest(there))
    run.printer.record(summary | ({"skipped_first": _named(done.tally)} if run.printer.json_output else {}))
    _say_skipped(run, done.tally)
    if wait and summary["in_table"] > done.tally.objects:
        run.printer.note(
            f"the table has {summary['in_table'] - done.tally.objects:,} rows more than were seen: "
            f"frazil content reconcile {place}"
        )


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
    with _place(run, place, prefix, look=look) as (settings, there), _work(run, settings, catalog) as work:
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
def _place(
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
def _work(run: Run, settings: Settings, catalog: str | None) -> Iterator[Work]:
    """The log, wherever it is, and one Spark session for all that is to be done."""
    from frazil.content.looking.work import Work
    from frazil.spark import spark_session
    from frazil.topics import connect, flight_address

    def note(text: str) -> None:
        run.printer.note(f"note: {text}")

    with (
        connect(settings, note=note, catalog=catalog) as access,
        flight_address(access) as address,
        spark_session(settings) as spark,
    ):
        yield Work(settings, access, address, spark, catalog)


def _only_latest(there: Place) -> bool:
    return getattr(there, "versions", None) == "latest"


@contextmanager
def _bar(run: Run) -> Iterator[Callable[[Tally, int], None] | None]:
    """A line of progress on standard error, for people."""
    if run.printer.json_output or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    shown = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True)
    )
    with shown:
        task = shown.add_task("listing")

        def progress(tally: Tally, left: int) -> None:
            shown.update(task, description=f"{tally.objects:,} objects, {left:,} parts left")

        yield progress


def _named(tally: Tally) -> list[dict[str, str]]:
    return [{"key": skipped.key, "reason": skipped.reason} for skipped in tally.named]


def say_own(run: Run, there: Folder) -> None:
    for path in there.own:
        run.printer.note(f"note: {path} is Frazil's own, and is left out")


def _say_skipped(run: Run, tally: Tally) -> None:
    for skipped in tally.named[:3]:
        run.printer.note(f"note: {skipped.key!r} is left out: {skipped.reason}")
    if tally.skipped > 3:
        run.printer.note(f"note: {tally.skipped - 3:,} more are left out")


def _show_plan(run: Run, plan: Plan, summary: dict[str, Any]) -> None:
    if run.printer.json_output:
        run.printer.json({**summary, "first": plan.first})
        return
    run.printer.record(summary)
    for kind, rows in plan.first.items():
        print(f"\n{kind}:")
        run.printer.rows(list(rows[0]) if rows else [], [list(row.values()) for row in rows], none="not shown")
