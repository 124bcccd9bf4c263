"""`frazil content scan`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.amounts import shown_size
from frazil.cli.content_look import PlaceArgument, PrefixOption, opened, place_at
from frazil.cli.content_progress import Phases, phases
from frazil.cli.content_summary import as_json, print_summary
from frazil.cli.invocation import CatalogOption, Run
from frazil.cli.printing import visible
from frazil.cli.stopping import Stopping, leave_soon
from frazil.errors import FrazilError, InterruptedByUser, UsageError

if TYPE_CHECKING:
    from frazil.content.looking.listing import Place
    from frazil.content.looking.scan import Scanned
    from frazil.content.looking.work import Work
    from frazil.content.summary import Summary
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
    from frazil.content.extract.registry import extractors

    with place_at(run, place, prefix, versions) as (settings, there):
        asked = _Asked(prefix, everything, gone, restart, wait, _looks_inside(there, extract, wait))
        if gone and not there.is_local:
            raise UsageError("--gone is for folders: events of a bucket may be late", hint="frazil content reconcile")
        if asked.extract:
            extractors(settings)  # one that nobody knows is told before anything is done
        _Scan(run, settings, there, asked, place, catalog).go()


@dataclass(frozen=True)
class _Asked:
    prefix: str
    everything: bool
    gone: bool | None
    restart: bool
    wait: bool
    extract: bool


def _looks_inside(there: Place, asked: bool | None, wait: bool) -> bool:
    """Reading a whole bucket costs money and time, so that somebody has to say it."""
    if asked and not wait:
        raise UsageError("what is not in the table yet cannot be looked into", hint="leave --no-wait out")
    return wait and (there.is_local if asked is None else asked)


class _Scan:
    def __init__(
        self, run: Run, settings: Settings, there: Place, asked: _Asked, typed: str, catalog: str | None
    ) -> None:
        self._run, self._settings, self._there, self._asked = run, settings, there, asked
        self._typed, self._catalog = typed, catalog

    def go(self) -> None:
        began = time.monotonic()
        with self._interruptible(), opened(self._run, self._settings, self._catalog) as work:
            with phases(self._run.printer.json_output) as bar:
                report = self._work(work, bar)
            summary = self._summary() if self._asked.wait else None
        self._print({**report, "total_s": round(time.monotonic() - began, 3)}, summary)

    def _work(self, work: Work, bar: Phases) -> dict[str, Any]:
        began = time.monotonic()
        if self._asked.wait and work.waiting():
            with bar.waiting("taking what was told before into the table"):
                work.until_visible()
        asked = self._asked
        with bar.listing() as progress:
            done = work.scan(
                self._there, asked.prefix, restart=asked.restart, everything=asked.everything, gone=asked.gone,
                wait=asked.wait, progress=progress,
            )  # fmt: skip
        report = self._told(done)
        if asked.wait:
            with bar.waiting("taking it into the table"):
                work.until_visible(done.tally.end)
            report["visible_s"] = round(time.monotonic() - began, 3)
            report["in_table"] = work.rows(self._there.bucket, asked.prefix, latest=_only_latest(self._there))
        if asked.extract and work.pending(self._there.bucket, asked.prefix):
            report["extraction"] = self._look_inside(work, bar)
        return report

    def _look_inside(self, work: Work, bar: Phases) -> dict[str, Any]:
        from frazil.content.extract.choose import Asked
        from frazil.content.extract.job import extract

        asked = Asked(self._there.bucket, self._asked.prefix, latest=_only_latest(self._there))
        with bar.looking_inside() as progress:
            done = extract(work, asked, progress=progress)
        with bar.waiting("taking what was found into the table"):
            work.until_visible(done.end)
        for text in done.notes:
            self._run.printer.note(f"note: {text}")
        return {
            "objects": done.objects,
            "by_status": done.by_status,
            "bytes_read": done.bytes_read,
            "seconds": round(done.seconds, 3),
            "objects_per_s": round(done.objects / max(done.seconds, 0.001)),
        }

    def _told(self, done: Scanned) -> dict[str, Any]:
        tally = done.tally
        return {
            "bucket": self._there.bucket,
            "prefix": self._asked.prefix,
            "objects": tally.objects,
            "bytes": tally.bytes,
            "new": tally.new,
            "changed": tally.changed,
            "unchanged": tally.objects - tally.new - tally.changed,
            "gone": done.gone,
            "skipped": tally.skipped,
            "skipped_first": [{"key": skipped.key, "reason": skipped.reason} for skipped in tally.named],
            "resumed": done.resumed,
            "listing_s": round(done.seconds, 3),
            "objects_per_s": round(done.listed / max(done.seconds, 0.001)),
            "visible_s": None,
            "in_table": None,
            "extraction": None,
            "total_s": None,
        }

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
        from frazil.content.summary import summary_of
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


def _only_latest(there: Place) -> bool:
    return getattr(there, "versions", None) == "latest"


def _late() -> FrazilError:
    return FrazilError("something hangs: it did not end in time", hint="what was told is in the log: the same again")


def _kill_jvm() -> None:
    from frazil.spark.jvm import end_at_once

    end_at_once()
