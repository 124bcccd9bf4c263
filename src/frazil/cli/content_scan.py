"""`frazil content scan`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.amounts import shown_size
from frazil.cli.content_look import PlaceArgument, PrefixOption, opened, place_at
from frazil.cli.content_progress import phases
from frazil.cli.content_summary import as_json, print_summary
from frazil.cli.invocation import CatalogOption, Run
from frazil.cli.printing import visible
from frazil.cli.stopping import Stopping, leave_soon
from frazil.errors import FrazilError, InterruptedByUser

if TYPE_CHECKING:
    from frazil.content.full_scan import ScanRequest
    from frazil.content.query.summary import Summary
    from frazil.content.scan.listing import ScanTarget
    from frazil.settings import Settings

#: Seconds from a signal to the end of the process, whatever hangs.
_TO_END_S = 15.0


def scan(
    run: Run,
    place: PlaceArgument,
    prefix: PrefixOption = "",
    versions: Annotated[
        bool | None,
        typer.Option(
            "--versions/--no-versions",
            help="list all versions, or only the latest [default: all, if the bucket has versions]",
        ),
    ] = None,
    extract: Annotated[
        bool | None,
        typer.Option(
            "--extract/--no-extract",
            help="then extract metadata from new objects [default: yes for a folder, no for a bucket]",
        ),
    ] = None,
    gone: Annotated[
        bool | None,
        typer.Option(
            "--gone/--keep-gone",
            help="for a folder, record files that no longer exist [default: yes, unless the folder is empty]",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="publish objects that the table already has, too")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="exit when the rows are in the table")] = True,
    restart: Annotated[
        bool, typer.Option("--restart", help="start over instead of resuming an interrupted scan")
    ] = False,
    catalog: CatalogOption = None,
) -> None:
    """List a bucket or folder, record its objects in the tables, and extract their metadata.

    The first scan records all objects, later scans only changes. An interrupted scan resumes where it stopped. For a
    bucket, objects that are only in the table are left alone: `frazil content reconcile` handles those.
    """
    from frazil.content.full_scan import ScanRequest

    with place_at(run, place, prefix, versions) as (settings, there):
        asked = ScanRequest(prefix, everything, gone, restart, wait, extract).checked(there, settings)
        _Scan(run, settings, there, asked, place, catalog).go()


class _Scan:
    def __init__(
        self, run: Run, settings: Settings, there: ScanTarget, asked: ScanRequest, typed: str, catalog: str | None
    ) -> None:
        self._run, self._settings, self._there, self._asked = run, settings, there, asked
        self._typed, self._catalog = typed, catalog

    def go(self) -> None:
        from frazil.content.full_scan import run_full_scan

        began = time.monotonic()
        with self._interruptible(), opened(self._run, self._settings, self._catalog) as work:
            with phases(self._run.printer.json_output) as bar:
                report = run_full_scan(work, self._there, self._asked, bar)
            for text in report.extraction.notes if report.extraction is not None else ():
                self._run.printer.note(f"note: {text}")
            summary = self._summary() if self._asked.wait else None
        self._print({**report.to_dict(), "total_s": round(time.monotonic() - began, 3)}, summary)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """A signal ends it in seconds: what was told stays told, and the same command goes on there."""
        with Stopping(_TO_END_S, _late, kill=_kill_jvm, json_output=self._run.printer.json_output):
            try:
                yield
            except (KeyboardInterrupt, InterruptedByUser) as error:
                leave_soon(InterruptedByUser.exit_code)  # threads that hang in a call would be waited for
                if isinstance(error, InterruptedByUser):
                    raise
                raise InterruptedByUser(
                    "interrupted; progress is kept, and the same command resumes from there"
                ) from None

    def _summary(self) -> Summary:
        from frazil.content.query.summary import summary_of
        from frazil.content.tables import ContentTables
        from frazil.tables.store import LazyStore

        with LazyStore(self._settings, self._catalog) as store:
            return summary_of(ContentTables.of(store.store(), self._settings), self._there.bucket, self._asked.prefix)

    def _print(self, report: dict[str, Any], summary: Summary | None) -> None:
        if self._run.printer.json_output:
            self._run.printer.json({**report, "summary": None if summary is None else as_json(summary)})
            return
        for line in _headlines(report, "file" if self._there.is_local else "object"):
            print(line)
        if summary is not None:
            print_summary(summary, self._typed)
        self._say_what_is_left(report)

    def _say_what_is_left(self, report: dict[str, Any]) -> None:
        note = self._run.printer.note
        for skipped in report["skipped_first"][:3]:
            note(f"note: {skipped['key']!r} is skipped: {skipped['reason']}")
        if report["skipped"] > 3:
            note(f"note: {report['skipped'] - 3:,} more are skipped")
        over = 0 if report["in_table"] is None else report["in_table"] - report["objects"]
        if over <= 0:
            return
        if not self._there.is_local:
            note(f"the table has {over:,} more rows than objects were seen: frazil content reconcile {self._typed}")
        elif not report["objects"] and self._asked.gone is None:
            note(f"the folder is empty and its {over:,} rows are kept: is a disk unmounted? --gone removes them")
        else:
            note(f"the table has {over:,} more rows than objects were seen")


def _headlines(report: dict[str, Any], thing: str) -> Iterator[str]:
    """What was seen, what of it was news, and what it took to look inside."""
    seen = f"{report['objects']:,} {thing}{'' if report['objects'] == 1 else 's'}, {shown_size(report['bytes'])}"
    news = [f"{report[name]:,} {name}" for name in ("new", "changed", "gone") if report[name]]
    yield f"{visible(report['bucket'])}{visible(report['prefix']) and ', ' + visible(report['prefix'])}"
    yield f"{seen}: {', '.join(news) or 'nothing has changed'} ({report['total_s']:,.1f} s)"
    if report["resumed"]:
        yield "resumed the interrupted scan"
    if (inside := report["extraction"]) is not None:
        each = f"{inside['objects_per_s']:,} per second, " if inside["objects_per_s"] else ""
        looked = f"extracted {inside['objects']:,} in {inside['seconds']:,.1f} s"
        yield f"{looked}: {each}{shown_size(inside['bytes_read'])} read"


def _late() -> FrazilError:
    return FrazilError(
        "the command did not exit in time", hint="run the same command again: what was published is in the log"
    )


def _kill_jvm() -> None:
    from frazil.spark.jvm import end_at_once

    end_at_once()
