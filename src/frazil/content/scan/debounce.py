"""Which files of a folder are news, out of what one look after the other shows. Knows no clock and no disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from frazil.content.scan.listing import Object, Skipped

#: Seconds that a file has not been written to, after which it counts as done at the first look.
QUIET_S = 1.0
#: Seconds after which a file that is still being written to is told all the same.
GROWING_S = 30.0

Kind = Literal["new", "changed", "gone"]


@dataclass(frozen=True)
class FileChange:
    kind: Kind
    found: Object


class Debouncer:
    """Remembers what was told.

    A file is told when two looks saw it alike, or when nobody has written to it for a second: so one that is being
    written is told once, when it is done. One that grows without end is told every 30 seconds.

    Args:
        told: etags by key, as the table has them.
    """

    def __init__(self, told: dict[str, str]) -> None:
        self._told = told
        #: Of files that are being written: how they looked last, and since when that goes on.
        self._moving: dict[str, tuple[str, float]] = {}

    def look(self, files: Iterable[Object], skipped: Sequence[Skipped], now: float) -> list[FileChange]:
        """The news, which from now on counts as told.

        Args:
            files: all that are there.
            skipped: what nobody could look at; what lies there is not gone.
            now: seconds since 1970, by the clock that `last_modified` goes by.
        """
        seen: set[str] = set()
        news: list[FileChange] = []
        for found in files:
            key, etag = found["key"], found["etag"]
            seen.add(key)
            if self._told.get(key) == etag:
                self._moving.pop(key, None)
            elif self._is_done(found, now):
                news.append(FileChange("changed" if key in self._told else "new", found))
                self._told[key] = etag
        self._moving = {key: moving for key, moving in self._moving.items() if key in seen}
        gone = [key for key in self._told if key not in seen and not any(s.hides(key) for s in skipped)]
        for key in gone:
            del self._told[key]
        return news + [FileChange("gone", {"key": key, "version_id": "", "exists": False}) for key in sorted(gone)]

    def _is_done(self, found: Object, now: float) -> bool:
        key, etag = found["key"], found["etag"]
        before, since = self._moving.get(key, ("", now))
        written = datetime.fromisoformat(found["last_modified"]).timestamp()
        if before == etag or now - written > QUIET_S or now - since >= GROWING_S:
            self._moving.pop(key, None)
            return True
        self._moving[key] = (etag, since)
        return False
