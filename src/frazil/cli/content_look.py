"""`frazil content reconcile`, and what it shares with others that look at a place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run
from frazil.errors import DifferencesError, UsageError

if TYPE_CHECKING:
    from frazil.content.scan.folder import Folder
    from frazil.content.scan.listing import ScanTarget
    from frazil.content.scan.reconcile import PublishedCounts
    from frazil.content.scan.session import ScanSession
    from frazil.settings import Settings

PlaceArgument = Annotated[str, typer.Argument(metavar="BUCKET|FOLDER", help="s3://bucket, a bucket name, or a folder")]
PrefixOption = Annotated[str, typer.Option("--prefix", help="only keys with this prefix")]

SECTIONS = (*CATALOG_SECTIONS, "log", "content", "pipeline", "spark")


def reconcile(
    run: Run,
    place: PlaceArgument,
    prefix: PrefixOption = "",
    against: Annotated[
        str,
        typer.Option(
            metavar="listing|TABLE", help="what to compare with: a listing, or a table of S3 Inventory or S3 Metadata"
        ),
    ] = "listing",
    apply: Annotated[
        bool, typer.Option("--apply", help="repair the differences, after checking the bucket again")
    ] = False,
    bucket_gone: Annotated[
        bool, typer.Option("--bucket-gone", help="the bucket was deleted; applied only if the store confirms it")
    ] = False,
    first: Annotated[int, typer.Option(min=0, help="differences to show per kind")] = 10,
    catalog: CatalogOption = None,
) -> None:
    """Compare the table with the objects in a bucket or folder: missing, orphaned, mismatched.

    Without --apply, it changes nothing, and exits with code 14 if there are differences.
    """
    if bucket_gone:
        _reconcile_gone(run, place, prefix, against, apply=apply, catalog=catalog)
        return
    look = apply or against == "listing"
    with place_at(run, place, prefix, look=look) as (settings, there), opened(run, settings, catalog) as session:
        waiting = session.waiting()
        if waiting:
            run.printer.note(
                f"{waiting:,} messages are in the log but not in the table yet; the comparison does not include them"
            )
        plan, began = session.plan(there, prefix, against=against, first=first)
        told = session.repair(there, plan) if apply and plan.faults else None
    summary = {
        "bucket": there.bucket,
        "prefix": prefix,
        "against": against,
        "began_at": began,
        "matching": plan.matching,
        **plan.counts,
        "waiting": waiting,
        "applied": apply,
        "repaired": _repaired(told),
    }
    _show_plan(run, summary, plan.first)
    if not apply:
        _require_none(plan.faults, there.bucket)


def _reconcile_gone(run: Run, text: str, prefix: str, against: str, *, apply: bool, catalog: str | None) -> None:
    from frazil.content.scan.bucket import Bucket
    from frazil.content.scan.reconcile import FAULTS, ORPHANED, RECENT, UNKNOWN

    with place_at(run, text, prefix, look=False) as (settings, there):
        if not isinstance(there, Bucket) or against != "listing":
            raise UsageError(
                f"--bucket-gone cannot be combined with {there.bucket if against == 'listing' else '--against'}",
                cause="only an object store can confirm that a bucket was deleted; for a folder, a disk may be "
                "unmounted",
                hint="frazil content reconcile s3://BUCKET --bucket-gone",
            )
        began = there.confirm_missing()
        with opened(run, settings, catalog) as session:
            waiting, rows = session.waiting(), session.rows(there.bucket, prefix)
            told = session.record_bucket_gone(there, prefix) if apply else None
    summary = {
        "bucket": there.bucket,
        "prefix": prefix,
        "against": against,
        "began_at": began,
        "matching": 0,
        **dict.fromkeys((*FAULTS, RECENT, UNKNOWN), 0),
        ORPHANED: rows,
        "waiting": waiting,
        "applied": apply,
        "repaired": _repaired(told),
    }
    _show_plan(run, summary, {})
    if not apply:
        _require_none(rows, there.bucket)


def _repaired(told: PublishedCounts | None) -> dict[str, int] | None:
    return None if told is None else {"there": told.there, "gone": told.gone}


def _require_none(differences: int, bucket: str) -> None:
    if differences:
        found = "1 difference was" if differences == 1 else f"{differences:,} differences were"
        raise DifferencesError(f"{found} found in {bucket}", hint="run the same command with --apply")


# -- what they share ---------------------------------------------------------------------------------------------------


@contextmanager
def place_at(
    run: Run, text: str, prefix: str, versions: bool | None = None, *, look: bool = True
) -> Iterator[tuple[Settings, ScanTarget]]:
    """The place, looked at before anything is started: a misspelt name changes nothing."""
    from frazil.content.scan.folder import Folder
    from frazil.content.scan.listing import open_target
    from frazil.topics.sinks.jobs import for_pipeline

    settings = for_pipeline(run.settings(*SECTIONS))
    there = open_target(text, settings, prefix, versions=versions, look=look)
    if isinstance(there, Folder):
        say_own(run, there)
    yield settings, there


@contextmanager
def opened(run: Run, settings: Settings, catalog: str | None) -> Iterator[ScanSession]:
    """The log, wherever it is, and one Spark session for all that needs it, started then."""
    from frazil.content.scan.engine import LazyEngine
    from frazil.content.scan.session import ScanSession
    from frazil.topics import connect

    def note(text: str) -> None:
        run.printer.note(f"note: {text}")

    with connect(settings, note=note, catalog=catalog) as access, LazyEngine(settings, access) as engine:
        yield ScanSession(settings, access, engine, catalog)


def say_own(run: Run, there: Folder) -> None:
    for path in there.own:
        run.printer.note(f"note: {path} belongs to Frazil and is skipped")


def _show_plan(run: Run, summary: dict[str, Any], first: dict[str, list[dict[str, Any]]]) -> None:
    if run.printer.json_output:
        run.printer.json({**summary, "first": first})
        return
    run.printer.record(summary)
    for kind, rows in first.items():
        print(f"\n{kind}:")
        run.printer.rows(list(rows[0]) if rows else [], [list(row.values()) for row in rows], none="not shown")
