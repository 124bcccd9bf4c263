"""Repairs a damaged topic: whole frames stay, damaged bytes are quarantined, lost offsets are listed.

A segment with a break becomes two: frames behind it get their own file, whose head states where the first ended.
Offsets that were assigned are never assigned again, even if their messages are lost.
"""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frazil.log.disk import Disk
from frazil.log.frame import Header, Kind, pack_header, padding, unpack_header
from frazil.log.maintenance.verify import LogReport, verify_log
from frazil.log.maintenance.walk import Run, WalkedSegment, apply_frames, map_file
from frazil.log.owner import Owner
from frazil.log.state import State
from frazil.log.synced_mark import SyncedMark, SyncedMarkFile
from frazil.observe.faultpoints import reach


@dataclass
class Repair:
    """A repair that is planned or done."""

    topic: str
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Offsets, the end excluded, whose messages the log does not have any more."""
    quarantined: int = 0
    """Bytes that move into quarantine."""
    files: list[str] = field(default_factory=list)
    """Files that are written anew or removed."""

    def to_dict(self) -> dict[str, Any]:
        lost = [{"start": a, "end": b} for a, b in self.lost]
        return {"topic": self.topic, "lost": lost, "quarantined": self.quarantined, "files": self.files}


@dataclass(frozen=True)
class _Piece:
    """A segment after the repair: a new head if `head` is given, then bytes of an old file."""

    id: int
    head: bytes | None
    parts: tuple[tuple[Path, int, int], ...]
    end_offset: int
    epoch: int


def repair_log(directory: Path, topic: str, *, dry_run: bool, disk: Disk | None = None) -> Repair:
    """Repairs a topic so that it opens. No process may have the log open.

    Raises:
        LockedError: a process has it open; the message names it.
    """
    owner = Owner.take(directory)
    try:
        report = verify_log(directory, topic)
        return _Repairing(directory / "topics" / topic, report, disk or Disk()).run(dry_run=dry_run)
    finally:
        owner.release()


class _Repairing:
    def __init__(self, folder: Path, report: LogReport, disk: Disk) -> None:
        self._folder, self._report, self._disk = folder, report, disk
        self._log_id = int(report.log_id[:16], 16) if report.log_id else 0
        self._pieces: list[_Piece] = []
        self._end: int | None = None
        self._plan = Repair(report.topic)

    def run(self, *, dry_run: bool) -> Repair:
        if self._report.sound or not self._report.log_id:
            return self._plan
        for number, walked in enumerate(self._report.walked):
            self._plan_segment(number, walked)
        self._skip_assigned_offsets()
        self._summarize()
        if not dry_run:
            self._quarantine_damaged()
            self._write()
        return self._plan

    # -- plan ------------------------------------------------------------------------------------------------------

    def _plan_segment(self, number: int, walked: WalkedSegment) -> None:
        for run in walked.runs:
            first, end = run.first, max(run.end_offset, walked.end_offset if run is walked.runs[-1] else 0)
            if self._end is not None and (first < self._end or (first == self._end == end and run.begin > 0)):
                continue  # written by a repair that broke off, or state alone that is known
            whole = (walked.segment.path, run.begin, run.end)
            if run.begin == 0 and walked.head is not None and walked.previous in (None, self._end):
                self._pieces.append(_Piece(walked.id, None, (whole,), end, run.epoch))
            elif first == self._end and run.begin > 0 and self._pieces:
                last = self._pieces[-1]  # only state was lost: the frames still follow each other
                self._pieces[-1] = _Piece(last.id, last.head, (*last.parts, whole), end, run.epoch)
            else:
                self._add_lost(first, walked.id if self._end is None else self._end)
                self._pieces.append(self._make_piece_with_head(number, walked, run, first, end))
            self._end = end

    def _make_piece_with_head(self, number: int, walked: WalkedSegment, run: Run, first: int, end: int) -> _Piece:
        begin = run.begin
        if begin == 0 and walked.head is not None:
            begin = unpack_header(map_file(walked.segment.path)).frame_size
        state = self._state(number, run)
        head = self._head(first, state, run.epoch, until=end if end > run.end_offset else None)
        return _Piece(first, head, ((walked.segment.path, begin, run.end),), end, run.epoch)

    def _state(self, number: int, run: Run | None) -> State:
        """Returns the state according to the last head before a run and the frames after it."""
        state = State()
        heads = [i for i, w in enumerate(self._report.walked[: number + 1]) if w.head is not None]
        for walked in self._report.walked[heads[-1] if heads else 0 : number + 1]:
            view = map_file(walked.segment.path)
            mine = run is not None and any(r is run for r in walked.runs)
            runs = [r for r in walked.runs if not mine or run is None or r.begin < run.begin or r.begin == 0]
            apply_frames(view, [_head_only(view) if mine and r is run else r for r in runs], state)
        return state

    def _head(self, segment_id: int, state: State, epoch: int, until: int | None = None) -> bytes:
        body = state.snapshot(self._end)
        if until is not None:
            body = json.dumps(json.loads(body) | {"until": until}, separators=(",", ":")).encode()
        header = Header(
            Kind.state, 0, self._log_id, epoch, 0, segment_id, segment_id, time.time_ns() // 1000, 0, -1, 0, len(body),
            zlib.crc32(body),
        )  # fmt: skip
        return pack_header(header) + body + padding(len(body))

    def _add_lost(self, until: int, after: int) -> None:
        if until > after:
            self._plan.lost.append((after, until))

    def _skip_assigned_offsets(self) -> None:
        walked = self._report.walked
        mark = self._report.mark
        given = max([mark.offset if mark else 0, *(w.synced for w in walked), *(w.previous or 0 for w in walked)])
        ends = [f.offsets[1] or 0 for f in self._report.findings if f.offsets is not None and f.severity == "error"]
        given = max([given, *ends])
        if self._end is None or given > self._end:
            self._end = (walked[0].id if walked else 0) if self._end is None else self._end
            self._add_lost(given, self._end)
            epoch = max((p.epoch for p in self._pieces), default=0) + 1
            state = self._state(len(walked) - 1, None)
            self._pieces.append(_Piece(given, self._head(given, state, epoch), (), given, epoch))
            self._end = given

    def _summarize(self) -> None:
        kept = {p.id for p in self._pieces}
        gone = [w.id for w in self._report.walked if w.id not in kept]
        changed = [p.id for p in self._pieces if self._changes(p)]
        self._plan.files = [f"{i:020d}.seg" for i in sorted({*changed, *gone})]
        self._plan.quarantined = sum(b.end - b.start for w in self._report.walked for b in w.breaks)

    def _changes(self, piece: _Piece) -> bool:
        if piece.head is not None or len(piece.parts) != 1:
            return True
        path, begin, end = piece.parts[0]
        return begin != 0 or end != path.stat().st_size

    # -- do --------------------------------------------------------------------------------------------------------

    def _quarantine_damaged(self) -> None:
        keep = self._folder / "quarantine"
        for walked in self._report.walked:
            for found in walked.breaks:
                if found.end > found.start:
                    keep.mkdir(mode=0o700, exist_ok=True)
                    name = f"{walked.segment.path.stem}-{found.start}-{time.time_ns()}.damaged"
                    self._disk.replace(keep / name, bytes(map_file(walked.segment.path)[found.start : found.end]))
        self._disk.sync_folder(self._folder)

    def _write(self) -> None:
        """Writes new files first, then those that lose their end, so that a crash never loses a frame."""
        old = {w.id for w in self._report.walked}
        contents = [(p.id, self._content(p)) for p in self._pieces if self._changes(p)]
        for segment_id, content in sorted(contents, key=lambda c: (c[0] in old, -c[0])):
            reach("log.repair.segment.before")
            path = self._folder / f"{segment_id:020d}.seg"
            self._disk.remove(path.with_suffix(".idx"))
            self._disk.replace(path, content)
            reach("log.repair.segment.after")
        for segment_id in old - {p.id for p in self._pieces}:
            self._disk.remove(self._folder / f"{segment_id:020d}.idx")
            self._disk.remove(self._folder / f"{segment_id:020d}.seg")
        self._disk.sync_folder(self._folder)
        self._set_mark()

    def _content(self, piece: _Piece) -> bytes:
        return b"".join([piece.head or b"", *(bytes(map_file(path)[begin:end]) for path, begin, end in piece.parts)])

    def _set_mark(self) -> None:
        if not self._pieces:
            return
        last = self._pieces[-1]
        size = (self._folder / f"{last.id:020d}.seg").stat().st_size
        reach("log.repair.mark.before")
        mark = SyncedMarkFile(self._folder / "synced", self._log_id, self._disk)
        try:
            mark.write(SyncedMark(last.id, size, last.end_offset))
            mark.sync()
        finally:
            mark.close()
        reach("log.repair.mark.after")


def _head_only(view: memoryview) -> Run:
    header = unpack_header(view)
    return Run(0, header.frame_size, header.base_offset, header.base_offset, header.epoch)
