"""Verifies a topic's folder and reports each problem. Changes nothing, and may run beside a broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from frazil.errors import IntegrityError, NotFoundError, UnsupportedError
from frazil.log.maintenance.walk import Break, WalkedSegment, add_range, walk_segment
from frazil.log.owner import read_owner
from frazil.log.segment import Segment, segment_ids
from frazil.log.synced_mark import SyncedMark, read_synced_mark
from frazil.log.topic_file import NAME, TopicFile

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """A problem. Only an error means that messages are lost or at risk."""

    severity: Severity
    what: str
    """`damaged`, `torn`, `offsets`, `missing`, `mark`, `index`, `quarantine` or `topic`; topics/verify.py has more."""
    where: str
    message: str
    bytes: tuple[int, int] | None = None
    offsets: tuple[int, int | None] | None = None
    """The offsets concerned, the end excluded; None where it is unknown."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class LogReport:
    """The contents of a topic's folder."""

    topic: str
    log_id: str = ""
    segments: int = 0
    frames: int = 0
    messages: int = 0
    size: int = 0
    start: int = 0
    end: int = 0
    open: bool = False
    """Whether a process has the log open; then only what is on disk for sure was looked at."""
    findings: list[Finding] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """Where messages are, in order and without the gaps."""
    walked: list[WalkedSegment] = field(default_factory=list)
    mark: SyncedMark | None = None

    @property
    def sound(self) -> bool:
        return not any(f.severity == "error" for f in self.findings)

    def add(self, severity: Severity, what: str, where: str, message: str, **more: Any) -> None:
        self.findings.append(Finding(severity, what, where, message, **more))

    def to_dict(self) -> dict[str, Any]:
        names = ("log_id", "segments", "frames", "messages", "size", "start", "end", "open")
        return {name: getattr(self, name) for name in names}


def verify_log(directory: Path, topic: str) -> LogReport:
    """Checks all frames of a topic: CRCs, contents, offsets, the chain of segments, mark, indexes, quarantine.

    Raises:
        NotFoundError: the folder has no such topic.
        NewerVersionError: a later version of Frazil has written there.
    """
    folder = directory / "topics" / topic
    if not (folder / NAME).exists():
        raise NotFoundError(f"topic '{topic}' does not exist in the log at {directory}", hint="frazil topic list")
    report = LogReport(topic, open=read_owner(directory) is not None)
    try:
        report.log_id = TopicFile.read(folder).log_id
        log_id = int(report.log_id[:16], 16)
    except (IntegrityError, UnsupportedError, ValueError) as error:
        report.add("error", "topic", NAME, str(error))
        return report
    report.mark = read_synced_mark(folder / "synced", log_id)
    report.walked = list(_walk(folder, report, log_id))
    for number, walked in enumerate(report.walked):
        _check_segment(report, walked, last=number == len(report.walked) - 1)
    _check_chain(report)
    _check_mark(report, folder)
    _check_files(report, folder)
    _summarize(report)
    return report


def _walk(folder: Path, report: LogReport, log_id: int) -> Iterator[WalkedSegment]:
    mark = report.mark
    for segment_id in segment_ids(folder):
        limit = None
        if report.open and mark is not None and segment_id >= mark.segment_id:
            limit = mark.position if segment_id == mark.segment_id else 0
        at = (mark.position,) if mark is not None and segment_id == mark.segment_id else ()
        with suppress(FileNotFoundError):  # retention of the process that has it open was faster
            walked = walk_segment(folder, segment_id, log_id, limit=limit, at=at)
            if limit != 0:
                yield walked


def _check_segment(report: LogReport, walked: WalkedSegment, *, last: bool) -> None:
    for found in walked.breaks:
        lost = (found.after, found.until)
        if found.start == found.end:
            message = f"offsets {found.after} to {found.until} are missing: {found.problem}"
            report.add("error", "offsets", walked.name, message, bytes=(found.start, found.end), offsets=lost)
        elif last and _is_torn(report.mark, walked, found):
            message = f"{found.end - found.start:,} bytes at the end were never on disk for sure: {found.problem}"
            report.add("warning", "torn", walked.name, message, bytes=(found.start, found.end), offsets=lost)
        else:
            until = "the end of the segment" if found.until is None else found.until
            message = f"{found.problem}; offsets {found.after} to {until} are concerned"
            report.add("error", "damaged", walked.name, message, bytes=(found.start, found.end), offsets=lost)


def _is_torn(mark: SyncedMark | None, walked: WalkedSegment, found: Break) -> bool:
    """Decides as recovery does: torn is what neither the mark nor any later frame says to have been synced."""
    if mark is not None and (
        mark.segment_id > walked.id or (mark.segment_id == walked.id and found.start < mark.position)
    ):
        return False
    return walked.synced <= found.after


def _check_chain(report: LogReport) -> None:
    before: WalkedSegment | None = None
    for walked in report.walked:
        known = walked.previous
        if before is not None and known is not None and known != before.end_offset:
            if known > before.end_offset:
                # What broke off at the end of the segment before is told there.
                cut = before.breaks and before.breaks[-1].until is None
                message = f"offsets {before.end_offset} to {known} are missing before this segment"
                if not cut:
                    lost = (before.end_offset, known)
                    report.add("error", "missing", walked.name, message, offsets=lost)
            else:
                message = (
                    f"it begins where the segment before it says {known}, but that one goes on to {before.end_offset}"
                )
                report.add("error", "offsets", walked.name, message, offsets=(known, before.end_offset))
        before = walked


def _check_mark(report: LogReport, folder: Path) -> None:
    mark, ids = report.mark, {w.id: w for w in report.walked}
    if mark is None:
        if report.walked and not (folder / "synced").exists():
            report.add("warning", "mark", "synced", "there is no synced mark; the next open makes one")
        elif report.walked:
            report.add("warning", "mark", "synced", "the synced mark cannot be read; the next open makes one")
        return
    walked = ids.get(mark.segment_id)
    name = f"{mark.segment_id:020d}.seg"
    if walked is None:
        last = max((w.end_offset for w in report.walked if w.id < mark.segment_id), default=0)
        message = f"the segment is missing; the synced mark says that it was on disk up to offset {mark.offset}"
        report.add("error", "missing", name, message, offsets=(last, mark.offset))
    elif walked.size < mark.position:
        message = f"the file has {walked.size:,} bytes, and {mark.position:,} were on disk, up to offset {mark.offset}"
        lost = (walked.end_offset, mark.offset)
        report.add("error", "missing", name, message, bytes=(walked.size, mark.position), offsets=lost)
    elif walked.ends.get(mark.position) != mark.offset and not walked.breaks:
        message = f"the synced mark says offset {mark.offset} at byte {mark.position:,}, where no such frame ends"
        report.add("warning", "mark", "synced", message)


def _check_files(report: LogReport, folder: Path) -> None:
    walked = {w.id: w for w in report.walked}
    for path in sorted(folder.glob("*.idx")):
        if path.stem.isdigit() and int(path.stem) not in walked and not report.open:
            report.add("note", "index", path.name, "an index without its segment; the next open removes it")
    for one in report.walked[:-1]:
        if not one.breaks:
            _check_index(report, folder, one)
    for path in sorted(folder.glob("quarantine/*")):
        size = path.stat().st_size
        report.add("note", "quarantine", f"quarantine/{path.name}", f"{size:,} bytes were cut off once, and kept")


def _check_index(report: LogReport, folder: Path, walked: WalkedSegment) -> None:
    found = Segment.from_index(folder, walked.id)
    name = walked.segment.index_path.name
    if found is None and not walked.segment.index_path.exists():
        report.add("note", "index", name, "the segment has no index; opening the log takes longer")
    elif found is None or not _same_index(found, walked):
        report.add("warning", "index", name, "the index does not fit its segment; remove it, and it is not used")


def _same_index(found: Segment, walked: WalkedSegment) -> bool:
    made = walked.segment
    ends = (found.size, found.end_offset) == (made.size, walked.end_offset)
    entries = found._positions == made._positions and found._offsets == made._offsets and found._times == made._times
    return ends and entries


def _summarize(report: LogReport) -> None:
    for walked in report.walked:
        report.segments += 1
        report.frames += walked.frames
        report.size += walked.size
        for first, end in walked.ranges:
            add_range(report.ranges, first, end)
    report.messages = sum(end - first for first, end in report.ranges)
    if report.walked:
        report.start, report.end = report.walked[0].id, report.walked[-1].end_offset
