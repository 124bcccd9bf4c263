"""A bucket of S3 in memory whose versioning is switched on and suspended: what it does, what it tells, what it lists.

It knows nothing of how `frazil.content` decides: what is true is the stack of versions that it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from frazil.content.columns import CREATE, DELETE
from tests.content_truth import Told, seen

#: Name of the version that a bucket has while its versioning is not enabled.
NULL = ""

Step = tuple[str, float, int, str]
"""What is done, the seconds that it takes before the next two things, which version it is about, what is written."""

#: Afterwards the null version lies below another one, and a listing has shown that.
BURIED: tuple[Step, ...] = (
    ("put", 3, 0, "x"), ("enable", 3, 0, ""), ("put", 3, 0, "y"), ("suspend", 3, 0, ""), ("list", 3, 0, ""),
)  # fmt: skip


@dataclass(frozen=True)
class Clocks:
    """How exact the times are that the outside gets to see.

    Attributes:
        whole_events: events carry whole seconds, as those of EventBridge.
        whole_listings: a listing carries whole seconds, as the header `Date` does.
        whole_modified: a listing shows `LastModified` in whole seconds, as AWS does.
        ahead: seconds by which the clock of the listings is ahead of that of the events.
    """

    whole_events: bool = False
    whole_listings: bool = False
    whole_modified: bool = False
    ahead: float = 0.0


@dataclass(frozen=True)
class Version:
    name: str
    etag: str | None
    at: float

    @property
    def is_marker(self) -> bool:
        return self.etag is None


@dataclass
class Bucket:
    """One key of a bucket. Each operation takes effect at `now` and returns the event that S3 sends for it."""

    clocks: Clocks = field(default_factory=Clocks)
    enabled: bool = False
    now: float = 0.0
    stack: list[Version] = field(default_factory=list)
    """The versions that are there, the current one last."""
    _events: int = 0
    _names: int = 0

    def put(self, etag: str) -> Told:
        return self._push(etag)

    def delete(self) -> Told | None:
        """A DELETE without a version: a delete marker, or in a bucket that never had versions the end of the object."""
        if self._names == 0 and not self.enabled:
            return self.remove(NULL)
        return self._push(None)

    def remove(self, name: str) -> Told | None:
        """The permanent delete of one version; None: there is none of that name, and S3 sends nothing."""
        left = [version for version in self.stack if version.name != name]
        if len(left) == len(self.stack):
            return None
        self.stack = left
        return Told(DELETE, version=name, sequence=self._sequence(), second=self._event_time)

    def listing(self) -> list[Told]:
        """All versions, as ListObjectVersions shows them now."""
        time = self._shown(self.now + self.clocks.ahead, whole=self.clocks.whole_listings)
        return [
            seen(
                time,
                version=version.name,
                etag=version.etag,
                marker=version.is_marker,
                latest=version is self.stack[-1],
                modified=self._shown(version.at, whole=self.clocks.whole_modified),
            )
            for version in self.stack
        ]

    def answer(self, names: set[str], second: float) -> list[Told]:
        """What the bucket says at a later time when it is asked for some versions."""
        self.now = max(self.now, second - self.clocks.ahead)
        gone = sorted(names - {version.name for version in self.stack})
        return [*self.listing(), *(seen(second, gone=True, version=name) for name in gone)]

    def truth(self) -> dict[str, tuple[str | None, bool, bool]]:
        """Of each version that is there: etag, whether it is a delete marker, whether it is the current one."""
        return {v.name: (v.etag, v.is_marker, v is self.stack[-1]) for v in self.stack}

    def _push(self, etag: str | None) -> Told:
        if self.enabled:
            self._names += 1
            name = f"v{self._names}"
        else:
            name = NULL
        self.stack = [version for version in self.stack if version.name != name]
        self.stack.append(Version(name, etag, self.now))
        sequence, time = self._sequence(), self._event_time
        return Told(CREATE, version=name, sequence=sequence, second=time, etag=etag, marker=etag is None)

    def _sequence(self) -> str:
        self._events += 1
        return f"{self._events:04X}1"

    @property
    def _event_time(self) -> float:
        return self._shown(self.now, whole=self.clocks.whole_events)

    @staticmethod
    def _shown(second: float, *, whole: bool) -> float:
        return float(math.floor(second)) if whole else second


def played(bucket: Bucket, done: Iterable[Step], before: int) -> list[list[Told]]:
    """What the bucket lets the outside know: each event, and each listing as one. The first steps send no events."""
    known: list[list[Told]] = []
    done = list(done)
    for number, (step, after, place, etag) in enumerate(done):
        bucket.now += after
        if number == before:
            known.append(bucket.listing())
            bucket.now += after
        event = None
        if step == "list":
            known.append(bucket.listing() if number >= before else [])
        elif step in ("enable", "suspend"):
            bucket.enabled = step == "enable"
        elif step == "put":
            event = bucket.put(etag)
        elif step == "delete":
            event = bucket.delete()
        elif bucket.stack:
            event = bucket.remove(bucket.stack[place % len(bucket.stack)].name)
        if event is not None and number >= before:
            known.append([event])
    if before >= len(done):
        known.append(bucket.listing())
    return [part for part in known if part]
