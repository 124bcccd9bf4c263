"""Detects new, changed and missing files in successive listings of a folder. Pure: uses no clock and no disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from frazil.content.scan.listing import Object, Skipped

#: Seconds without writes after which a file counts as complete when first listed.
QUIET_S = 1.0
#: Seconds after which a file that is still being written is reported anyway.
GROWING_S = 30.0

Kind = Literal["new", "changed", "gone"]


@dataclass(frozen=True)
class FileChange:
    kind: Kind
    found: Object


class Debouncer:
    """Reports each change of a folder once.

    A file is reported when two listings show it alike, or when it was not written for a second: so a file that is being
    written is reported once, when it is complete. One that keeps growing is reported every 30 seconds.

    Args:
        known: etags by key, as in the table.
    """

    def __init__(self, known: dict[str, str]) -> None:
        self._known = known
        #: Files that are being written: their last etag, and since when.
        self._moving: dict[str, tuple[str, float]] = {}

    def update(self, files: Iterable[Object], skipped: Sequence[Skipped], now: float) -> list[FileChange]:
        """Returns the changes since the last call, which then count as reported.

        Args:
            files: all files that exist.
            skipped: what could not be listed; files there do not count as gone.
            now: seconds since 1970, by the clock of `last_modified`.
        """
        seen: set[str] = set()
        changes: list[FileChange] = []
        for found in files:
            key, etag = found["key"], found["etag"]
            seen.add(key)
            if self._known.get(key) == etag:
                self._moving.pop(key, None)
            elif self._is_done(found, now):
                changes.append(FileChange("changed" if key in self._known else "new", found))
                self._known[key] = etag
        self._moving = {key: moving for key, moving in self._moving.items() if key in seen}
        gone = [key for key in self._known if key not in seen and not any(s.hides(key) for s in skipped)]
        for key in gone:
            del self._known[key]
        return changes + [FileChange("gone", {"key": key, "version_id": "", "exists": False}) for key in sorted(gone)]

    def _is_done(self, found: Object, now: float) -> bool:
        key, etag = found["key"], found["etag"]
        before, since = self._moving.get(key, ("", now))
        written = datetime.fromisoformat(found["last_modified"]).timestamp()
        if before == etag or now - written > QUIET_S or now - since >= GROWING_S:
            self._moving.pop(key, None)
            return True
        self._moving[key] = (etag, since)
        return False
