"""`frazil content extract`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.amounts import shown_size
from frazil.cli.content_look import SECTIONS, PrefixOption, opened
from frazil.cli.content_progress import phases
from frazil.cli.invocation import CatalogOption, Run
from frazil.cli.printing import visible
from frazil.cli.stopping import Stopping, leave_soon
from frazil.errors import FrazilError, InterruptedByUser, UsageError

if TYPE_CHECKING:
    from frazil.content.extraction.job import Extracted
    from frazil.content.extraction.selection import ExtractionRequest, Mode
    from frazil.content.scan.session import ScanSession
    from frazil.settings import Settings

#: Seconds from a signal to the end of the process, whatever hangs.
_TO_END_S = 15.0
#: Reasons and objects that are shown to people.
_SHOWN = 5


def extract(
    run: Run,
    place: Annotated[
        str | None,
        typer.Argument(metavar="[BUCKET|FOLDER]", help="only this bucket or folder [default: all in the table]"),
    ] = None,
    prefix: PrefixOption = "",
    missing: Annotated[
        bool, typer.Option("--missing", help="objects that have not been extracted yet [default]")
    ] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="retry objects that failed, were missing or had changed")
    ] = False,
    stale: Annotated[bool, typer.Option("--stale", help="rerun results of an older version of an extractor")] = False,
    everything: Annotated[bool, typer.Option("--all", help="extract every object again")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="only this extractor; may be repeated, or a,b")
    ] = None,
    latest: Annotated[bool, typer.Option("--latest", help="only the latest version of each key")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="extract at most this many objects")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only count the objects that would be extracted")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="continue as the table changes, until Ctrl-C")] = False,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="time between two polls of --follow")] = 5.0,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="exit when the results are in the table")] = True,
    catalog: CatalogOption = None,
) -> None:
    """Extract metadata from the content of objects into the table: image size, EXIF, type, text, and more.

    Runs on Spark and reads as little of each object as possible. After an interruption, the same command continues with
    the objects that are left.
    """
    from frazil.content.buckets import bucket_of, require_text
    from frazil.content.extraction.selection import ExtractionRequest
    from frazil.extract.registry import extractors
    from frazil.topics.sinks.jobs import for_pipeline

    require_text(prefix, "prefix")
    names = tuple(name.strip() for part in only or () for name in part.split(",") if name.strip())
    asked = ExtractionRequest(
        None if place is None else bucket_of(place),
        prefix,
        _mode(missing=missing, failed=failed, stale=stale, all=everything),
        names,
        latest,
        limit,
    )
    if follow and (dry_run or limit is not None or asked.mode == "all"):
        raise UsageError("--follow does not end", hint="without --dry-run, --limit and --all")
    settings = for_pipeline(run.settings(*SECTIONS))
    extractors(settings, names)  # a misspelt name is told before anything is started
    _Extract(run, settings, asked, _How(dry_run, follow, every, wait), catalog).go()


def _mode(**given: bool) -> Mode:
    asked = [name for name, is_set in given.items() if is_set]
    if len(asked) > 1:
        raise UsageError(f"--{asked[0]} and --{asked[1]} exclude each other", hint="one of them")
    mode: Mode = asked[0] if asked else "missing"  # type: ignore[assignment]
    return mode


@dataclass(frozen=True)
class _How:
    dry_run: bool
    follow: bool
    every: float
    wait: bool


class _Extract:
    def __init__(self, run: Run, settings: Settings, asked: ExtractionRequest, how: _How, catalog: str | None) -> None:
        self._run, self._settings, self._asked, self._how, self._catalog = run, settings, asked, how, catalog
        self._stop = threading.Event()

    def go(self) -> None:
        with self._interruptible(), opened(self._run, self._settings, self._catalog) as session:
            if self._how.dry_run:
                self._print_plan(session)
            elif self._how.follow:
                self._follow(session)
            else:
                self._once(session)

    def _once(self, session: ScanSession) -> None:
        from frazil.content.extraction.job import extract

        # What is not in the table yet would be looked into twice.
        waits = self._how.wait or self._how.follow
        with phases(self._run.printer.json_output) as bar:
            with bar.looking_inside() as progress:
                done = extract(session, self._asked, progress=progress)
            visible_s = None
            if waits and done.end:
                began = time.monotonic()
                with bar.waiting("writing results to the table"):
                    session.wait_until_visible(done.end)
                visible_s = round(done.seconds + time.monotonic() - began, 3)
        if done.objects or not self._how.follow:
            self._print(done, visible_s)
            print(end="", flush=True)

    def _follow(self, session: ScanSession) -> None:
        """Looks again when the table has a new snapshot."""
        from frazil.content.extraction.job import snapshot

        self._run.printer.note("extracting objects as they arrive; press Ctrl-C to stop")
        seen: int | None = None
        while True:
            now = snapshot(session)
            if now is not None and now != seen:
                self._once(session)
                seen = now
            self._stop.wait(self._how.every)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """A signal ends it in seconds: what was told stays told, and the same command goes on there."""
        with Stopping(_TO_END_S, _late, kill=_kill_jvm, json_output=self._run.printer.json_output):
            try:
                yield
            except (KeyboardInterrupt, InterruptedByUser):
                leave_soon(0 if self._how.follow else InterruptedByUser.exit_code)
                if self._how.follow:
                    return
                raise InterruptedByUser(
                    "interrupted; results are kept, and the same command continues from there"
                ) from None

    # -- what is printed ---------------------------------------------------------------------------------------------

    def _print_plan(self, session: ScanSession) -> None:
        from frazil.content.extraction.job import count_planned
        from frazil.extract.registry import registry

        plan = count_planned(session, self._asked)
        for source, why in registry().broken.items():
            self._run.printer.note(f"note: the extractor {source} is not available: {why}")
        self._run.printer.record({"objects": plan.objects, "bytes": plan.bytes, "by_extractor": plan.by_extractor})

    def _print(self, done: Extracted, visible_s: float | None) -> None:
        report = done.report
        for note in done.notes:
            self._run.printer.note(f"note: {note}")
        told: dict[str, Any] = {
            "bucket": self._asked.bucket,
            "prefix": self._asked.prefix,
            "mode": self._asked.mode,
            "objects": done.objects,
            "by_status": done.by_status,
            "by_extractor": _nested(report.by_extractor),
            "reasons": [
                {"extractor": name, "status": status, "reason": reason, "objects": count}
                for (name, status, reason), count in report.by_reason.most_common()
            ],
            "bytes_read": done.bytes_read,
            "thumbnails": report.thumbnails,
            "restarts": report.restarts,
            "seconds": round(done.seconds, 3),
            "objects_per_s": round(done.objects / max(done.seconds, 0.001)),
            "visible_s": visible_s,
            "slowest": [
                {"seconds": round(seconds, 3), "bucket": bucket, "key": key, "extractor": name}
                for seconds, bucket, key, name in report.slowest
            ],
            "failed": [
                {"bucket": bucket, "key": key, "extractor": name, "status": status, "reason": reason}
                for bucket, key, name, status, reason in report.failed
            ],
        }
        if self._run.printer.json_output:
            self._run.printer.json(told)
        else:
            _print_text(told)


def _print_text(told: dict[str, Any]) -> None:
    counts = ", ".join(f"{count:,} {status}" for status, count in sorted(told["by_status"].items()))
    print(
        f"{told['objects']:,} objects extracted ({counts or 'nothing to do'}), "
        f"{shown_size(told['bytes_read'])} read, {told['seconds']:,.1f} s, {told['objects_per_s']:,}/s"
    )
    for name, statuses in told["by_extractor"].items():
        print(f"  {name:<12} " + ", ".join(f"{count:,} {status}" for status, count in sorted(statuses.items())))
    if told["reasons"]:
        print("errors by reason:")
    for one in told["reasons"][:_SHOWN]:
        print(f"  {one['objects']:>8,}  {one['extractor']}, {one['status']}: {visible(one['reason'])}")
    if told["failed"]:
        print("first failures:")
    for one in told["failed"][:_SHOWN]:
        print(f"  {visible(one['key'])}  {one['extractor']}, {one['status']}: {visible(one['reason'])}")
    slow = [one for one in told["slowest"][:_SHOWN] if one["seconds"] >= 1]
    if slow:
        print("slowest:")
    for one in slow:
        print(f"  {one['seconds']:>7,.1f} s  {one['extractor']}  {visible(one['key'])}")


def _nested(counts: Any) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (name, status), count in sorted(counts.items()):
        nested.setdefault(name, {})[status] = count
    return nested


def _late() -> FrazilError:
    return FrazilError(
        "the command did not exit in time", hint="run the same command again: results so far are in the log"
    )


def _kill_jvm() -> None:
    from frazil.spark.jvm import end_at_once

    end_at_once()
