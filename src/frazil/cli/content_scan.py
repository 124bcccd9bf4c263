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
    from frazil.content.scan.listing import Place
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
            "--versions/--no-versions", help="all versions, or only the latest [default: all, if it has some]"
        ),
    ] = None,
    extract: Annotated[
        bool | None,
        typer.Option("--extract/--no-extract", help="then look into what is new [default: a folder yes, a bucket no]"),
    ] = None,
    gone: Annotated[
        bool | None,
        typer.Option(
            "--gone/--keep-gone", help="of a folder, record what is there no more [default: yes, unless it is empty]"
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="tell also what the table knows already")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="end when the rows are in the table")] = True,
    restart: Annotated[bool, typer.Option("--restart", help="begin anew, although a scan has broken off")] = False,
    catalog: CatalogOption = None,
) -> None:
    """Tell the tables what is in a bucket or folder now, and look inside.

    The first time that is everything, and later what has changed. A scan that broke off goes on where it was. Of a
    bucket, what the table has and the bucket has not is left alone: that is what `frazil content reconcile` is for.
    """
    from frazil.content.full_scan import ScanRequest

    with place_at(run, place, prefix, versions) as (settings, there):
        asked = ScanRequest(prefix, everything, gone, restart, wait, extract).checked(there, settings)
        _Scan(run, settings, there, asked, place, catalog).go()


class _Scan:
    def __init__(
        self, run: Run, settings: Settings, there: Place, asked: ScanRequest, typed: str, catalog: str | None
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
                    "interrupted; what was done stays, and the same command goes on there"
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
            note(f"note: {skipped['key']!r} is left out: {skipped['reason']}")
        if report["skipped"] > 3:
            note(f"note: {report['skipped'] - 3:,} more are left out")
        over = 0 if report["in_table"] is None else report["in_table"] - report["objects"]
        if over <= 0:
            return
        if not self._there.is_local:
            note(f"the table has {over:,} rows more than were seen: frazil content reconcile {self._typed}")
        elif not report["objects"] and self._asked.gone is None:
            note(f"the folder is empty, and its {over:,} rows are kept: is a disk missing? --gone removes them")
        else:
            note(f"the table has {over:,} rows more than were seen")


def _headlines(report: dict[str, Any], thing: str) -> Iterator[str]:
    """What was seen, what of it was news, and what it took to look inside."""
    seen = f"{report['objects']:,} {thing}{'' if report['objects'] == 1 else 's'}, {shown_size(report['bytes'])}"
    news = [f"{report[name]:,} {name}" for name in ("new", "changed", "gone") if report[name]]
    yield f"{visible(report['bucket'])}{visible(report['prefix']) and ', ' + visible(report['prefix'])}"
    yield f"{seen}: {', '.join(news) or 'nothing has changed'} ({report['total_s']:,.1f} s)"
    if report["resumed"]:
        yield "it went on where the last one broke off"
    if (inside := report["extraction"]) is not None:
        each = f"{inside['objects_per_s']:,} per second, " if inside["objects_per_s"] else ""
        looked = f"looked into {inside['objects']:,} in {inside['seconds']:,.1f} s"
        yield f"{looked}: {each}{shown_size(inside['bytes_read'])} read"


def _late() -> FrazilError:
    return FrazilError("something hangs: it did not end in time", hint="what was told is in the log: the same again")


def _kill_jvm() -> None:
    from frazil.spark.jvm import end_at_once

    end_at_once()
