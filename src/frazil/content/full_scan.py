"""A full scan: lists a bucket or folder, waits until the table has the differences, and extracts metadata."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from frazil.content.scan.listing import ScanTarget
from frazil.content.scan.scanner import Progress, ScanResult
from frazil.content.scan.session import ScanSession
from frazil.errors import UsageError
from frazil.settings import Settings


@dataclass(frozen=True)
class ScanRequest:
    """The parameters of a scan.

    Attributes:
        prefix: only keys that begin with it.
        everything: publish also what the table knows already.
        gone: of a folder, record what is no longer there; None: unless the folder is empty.
        restart: begin anew although a scan has broken off.
        wait: return when the table has the rows.
        extract: then extract from what is new; None: of a folder yes, of a bucket no.
    """

    prefix: str = ""
    everything: bool = False
    gone: bool | None = None
    restart: bool = False
    wait: bool = True
    extract: bool | None = None

    def checked(self, place: ScanTarget, settings: Settings) -> ScanRequest:
        """Returns the request with `extract` resolved, before anything is done.

        Raises:
            UsageError: it asks for what this place cannot do, or for an extractor that does not exist.
        """
        from frazil.extract.registry import extractors

        if self.gone and not place.is_local:
            raise UsageError(
                "the option gone is for folders: events of a bucket may be late", hint="frazil content reconcile"
            )
        if self.extract and not self.wait:
            raise UsageError("extraction needs objects that are in the table", hint="wait for the table")
        # Reading a whole bucket costs money and time, so it has to be requested.
        chosen = self.wait and (place.is_local if self.extract is None else self.extract)
        if chosen:
            extractors(settings)
        return replace(self, extract=chosen)


@dataclass(frozen=True)
class ExtractionReport:
    """The result of the extraction. `by_status` counts objects."""

    objects: int
    by_status: dict[str, int]
    bytes_read: int
    seconds: float
    objects_per_s: int
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        told = asdict(self)
        del told["notes"]
        return told


@dataclass(frozen=True)
class ScanReport:
    """The result of a scan.

    Attributes:
        bucket: the bucket or folder, as the tables have it.
        prefix: only keys that begin with it.
        objects: that are there.
        bytes: their size.
        new: objects that the table did not know.
        changed: objects that have changed.
        gone: objects that are no longer there.
        skipped: names that are no objects, or cannot be read.
        skipped_first: the first of these, each with `key` and `reason`.
        resumed: whether it went on where one before it broke off.
        listing_s: seconds of the listing.
        objects_per_s: objects listed per second.
        visible_s: seconds until the table had them; None: nobody waited.
        in_table: rows that the table has of the place; None: nobody waited.
        extraction: what was extracted; None: nothing.
        total_s: seconds in all.
    """

    bucket: str
    prefix: str
    objects: int
    bytes: int
    new: int
    changed: int
    gone: int
    skipped: int
    skipped_first: tuple[dict[str, str], ...]
    resumed: bool
    listing_s: float
    objects_per_s: int
    visible_s: float | None = None
    in_table: int | None = None
    extraction: ExtractionReport | None = None
    total_s: float | None = None

    @property
    def unchanged(self) -> int:
        return self.objects - self.new - self.changed

    def to_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        first = ("bucket", "prefix", "objects", "bytes", "new", "changed")
        return {
            **{name: fields.pop(name) for name in first},
            "unchanged": self.unchanged,
            **fields,
            "skipped_first": list(self.skipped_first),
            "extraction": None if self.extraction is None else self.extraction.to_dict(),
        }


class ScanProgress(Protocol):
    """Shows the progress of a scan."""

    def waiting(self, text: str) -> AbstractContextManager[None]: ...

    def listing(self) -> AbstractContextManager[Progress | None]: ...

    def looking_inside(self) -> AbstractContextManager[Callable[[int, int], None] | None]: ...


class NoProgress:
    """Shows no progress."""

    def waiting(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()

    def listing(self) -> AbstractContextManager[Progress | None]:
        return nullcontext()

    def looking_inside(self) -> AbstractContextManager[Callable[[int, int], None] | None]:
        return nullcontext()


def run_full_scan(
    session: ScanSession, place: ScanTarget, request: ScanRequest, progress: ScanProgress | None = None
) -> ScanReport:
    """Scans a target as a checked request says.

    Args:
        session: log, tables and Spark.
        place: bucket or folder.
        request: see `ScanRequest.checked`.
        progress: is told what it is at.

    Raises:
        FrazilError: it broke off; what was published stays, and the next scan continues there.
    """
    start = time.monotonic()
    shown = progress or NoProgress()
    if request.wait and session.waiting():
        with shown.waiting("taking what was told before into the table"):
            session.wait_until_visible()
    with shown.listing() as listed:
        done = session.scan(
            place,
            request.prefix,
            restart=request.restart,
            everything=request.everything,
            gone=request.gone,
            wait=request.wait,
            progress=listed,
        )
    report = _report(place, request, done)
    if request.wait:
        with shown.waiting("taking it into the table"):
            session.wait_until_visible(done.tally.end)
        visible_s = round(time.monotonic() - start, 3)
        rows = session.rows(place.bucket, request.prefix, latest=has_only_latest(place))
        report = replace(report, visible_s=visible_s, in_table=rows)
    if request.extract and session.pending(place.bucket, request.prefix):
        report = replace(report, extraction=_extract(session, place, request, shown))
    return replace(report, total_s=round(time.monotonic() - start, 3))


def has_only_latest(place: ScanTarget) -> bool:
    """Whether only the latest versions of objects are listed."""
    return getattr(place, "versions", None) == "latest"


def _extract(session: ScanSession, place: ScanTarget, request: ScanRequest, shown: ScanProgress) -> ExtractionReport:
    from frazil.content.extraction.job import extract
    from frazil.content.extraction.selection import ExtractionRequest

    asked = ExtractionRequest(place.bucket, request.prefix, latest=has_only_latest(place))
    with shown.looking_inside() as progress:
        done = extract(session, asked, progress=progress)
    with shown.waiting("taking what was found into the table"):
        session.wait_until_visible(done.end)
    return ExtractionReport(
        objects=done.objects,
        by_status=done.by_status,
        bytes_read=done.bytes_read,
        seconds=round(done.seconds, 3),
        objects_per_s=round(done.objects / max(done.seconds, 0.001)),
        notes=done.notes,
    )


def _report(place: ScanTarget, request: ScanRequest, done: ScanResult) -> ScanReport:
    tally = done.tally
    return ScanReport(
        bucket=place.bucket,
        prefix=request.prefix,
        objects=tally.objects,
        bytes=tally.bytes,
        new=tally.new,
        changed=tally.changed,
        gone=done.gone,
        skipped=tally.skipped,
        skipped_first=tuple({"key": skipped.key, "reason": skipped.reason} for skipped in tally.named),
        resumed=done.resumed,
        listing_s=round(done.seconds, 3),
        objects_per_s=round(done.listed / max(done.seconds, 0.001)),
    )
