"""`frazil content watch`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.content_look import SECTIONS, say_own
from frazil.cli.invocation import CatalogOption, Run
from frazil.cli.printing import visible
from frazil.cli.stopping import Stopping, leave_soon
from frazil.errors import FrazilError, UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from frazil.content.scan.debounce import FileChange
    from frazil.content.scan.folder import Folder
    from frazil.content.scan.wait_visible import BackgroundPipeline
    from frazil.log.protocol import LogAccess
    from frazil.settings import Settings

#: Seconds from the end of the pipeline's own time to the end of the process, whatever hangs.
_TO_END_S = 15.0


def watch(
    run: Run,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="folder to watch")],
    every: Annotated[float, typer.Option(min=0.05, metavar="SECONDS", help="time between two polls")] = 2.0,
    for_: Annotated[
        float | None, typer.Option("--for", min=0.0, metavar="SECONDS", help="stop after this time")
    ] = None,
    catalog: CatalogOption = None,
) -> None:
    """Poll a folder and record new, changed and deleted files in the tables, until Ctrl-C.

    It starts with the changes since the last scan or watch. A file is recorded once it is completely written. If no
    pipeline is running, one runs in this process.

    It does not extract metadata from files: to do so, run `frazil content extract FOLDER --follow` beside it.
    """
    from frazil.content.buckets import bucket_of, is_folder
    from frazil.content.scan.folder import open_folder
    from frazil.topics.sinks.jobs import for_pipeline

    settings = for_pipeline(run.settings(*SECTIONS, "upkeep"))
    bucket = bucket_of(folder)
    if not is_folder(bucket):
        raise UsageError(
            f"'{folder}' is not a folder",
            hint="a path, such as ./photos; a bucket sends events, see docs/events-setup.md",
        )
    there = open_folder(bucket, settings)
    say_own(run, there)
    _Watch(run, settings, there, every, for_, catalog).go(folder)


class _Watch:
    def __init__(
        self, run: Run, settings: Settings, folder: Folder, every: float, for_s: float | None, catalog: str | None
    ) -> None:
        self._run, self._settings, self._folder, self._catalog = run, settings, folder, catalog
        self._every, self._for_s = every, for_s
        self._changes = 0

    def go(self, typed: str) -> None:
        self._run.printer.note(
            f"files are not extracted; to do so, run: frazil content extract {visible(typed)} --follow"
        )
        try:
            self._watch()
        except FrazilError as error:
            if self._changes:
                text = f"{self._changes:,} changes are in the log; to apply them, run: frazil pipeline"
                raise error.adding(text, changes=self._changes, durable=True) from error.__cause__
            raise

    def _watch(self) -> None:
        from frazil.content.scan.wait_visible import BackgroundPipeline
        from frazil.content.topic import ensure_events_topic
        from frazil.tables.store import LazyStore
        from frazil.topics import connect, flight_address

        settings, note = self._settings, self._run.printer.note
        bound_s = settings.model.pipeline.stop_s + _TO_END_S
        with (
            Stopping(bound_s, self._late, kill=_kill_jvm, json_output=self._run.printer.json_output) as stopping,
            connect(settings, note=note, catalog=self._catalog) as access,
            flight_address(access) as address,
            LazyStore(settings, self._catalog) as store,
            self._in_background(BackgroundPipeline(settings, access, address, self._catalog)) as background,
        ):
            ensure_events_topic(access, settings)
            helper = _Helper(settings, access, store, background, note)
            helper.begin()
            stopping.be_gentle()
            timer = threading.Timer(self._for_s, stopping.asked.set) if self._for_s is not None else None
            if timer is not None:
                timer.start()
            try:
                self._look(access, store, stopping.asked, helper)
            finally:
                if timer is not None:
                    timer.cancel()
        note(f"{self._changes:,} changes were published")

    @contextmanager
    def _in_background(self, background: BackgroundPipeline) -> Iterator[BackgroundPipeline]:
        """Where its pipeline hangs in a call at the end, Python would wait for that."""
        try:
            with background:
                yield background
        finally:
            if background.hangs:
                error = sys.exception()
                leave_soon(error.exit_code if isinstance(error, FrazilError) else 0 if error is None else 130)

    def _look(self, access: LogAccess, store: Any, stop: threading.Event, helper: _Helper) -> None:
        from frazil.content.scan.debounce import Debouncer
        from frazil.content.scan.publish import ObservationPublisher
        from frazil.content.scan.watch import known_etags, watch
        from frazil.log.remote.producer import Producer

        settings, bucket = self._settings, self._folder.bucket
        settling = Debouncer(known_etags(store, settings, bucket))
        self._run.printer.note(f"watching {bucket}; press Ctrl-C or send SIGTERM to stop")
        with Producer(access, settings.model.content.topic, internal=True) as producer:
            publisher = ObservationPublisher(producer, bucket, "watch", settings.model.log.max_message_size)
            watch(
                self._folder,
                publisher,
                settling,
                every_s=self._every,
                stop=stop,
                told=self._told,
                idle=lambda: helper.keep_up(publisher.end),
            )

    def _told(self, changes: list[FileChange], observed_at: datetime) -> None:
        from frazil.cli.printing import json_text

        for change in changes:
            found = change.found
            if self._run.printer.json_output:
                line = {
                    "change": change.kind, "bucket": self._folder.bucket, "key": found["key"],
                    "size": found.get("size"), "etag": found.get("etag"), "observed_at": observed_at,
                }  # fmt: skip
                print(json_text(line, ascii_only=sys.stdout.encoding.lower() != "utf-8"))
            else:
                size = "" if found.get("size") is None else f"  {found['size']:,} bytes"
                print(f"{observed_at:%H:%M:%S}  {change.kind:<7}  {_line(found['key'])}{size}")
        self._changes += len(changes)
        print(end="", flush=True)

    def _late(self) -> FrazilError:
        return FrazilError("the command did not exit in time", hint="every change printed so far is in the log")


class _Helper:
    """Sees to it that a pipeline takes what was told."""

    def __init__(self, settings: Settings, access: LogAccess, store: Any, background: Any, note: Any) -> None:
        self._settings, self._access, self._store = settings, access, store
        self._background, self._note = background, note
        self._at, self._moved = 0, time.monotonic()

    def begin(self) -> None:
        from frazil.log.log import Log

        if isinstance(self._access, Log):  # so nobody else can take it
            self._background.start()

    def keep_up(self, end: int) -> None:
        """Starts a pipeline where the table has not moved for a while although there is something for it."""
        from frazil.content.scan.wait_visible import PATIENCE_S, applied_offset

        if self._background.runs:
            self._background.check()
            return
        if self._at >= end:
            self._moved = time.monotonic()
            return
        before, self._at = self._at, applied_offset(self._store, self._settings)
        if self._at > before or self._at >= end:
            self._moved = time.monotonic()
        elif time.monotonic() - self._moved > PATIENCE_S:
            self._note("no running pipeline found; starting one in this process")
            self._background.start()


def _line(key: str) -> str:
    """A key on one line."""
    return key if key.isprintable() else repr(key)


def _kill_jvm() -> None:
    from frazil.spark.jvm import end_at_once

    end_at_once()
