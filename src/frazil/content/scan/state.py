"""The progress of a scan in a small file, so that an interrupted scan resumes."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from frazil.atomic_files import write_file
from frazil.content.scan.listing import Shard, Skipped
from frazil.errors import LockedError, NotAllowedError
from frazil.settings import Settings
from frazil.settings.permissions import make_private_folder, open_private

_VERSION = 2
#: Number of skipped entries that are named; others are only counted.
_NAMED = 20


@dataclass(frozen=True)
class ShardProgress:
    """A shard, and the position of its next page; None for its start."""

    shard: Shard
    position: str | None = None


@dataclass(frozen=True)
class ScanCounts:
    """What was listed so far."""

    objects: int = 0
    bytes: int = 0
    pages: int = 0
    end: int = 0
    """The offset behind the last message."""
    skipped: int = 0
    named: tuple[Skipped, ...] = ()
    new: int = 0
    """Objects that are new to the table."""
    changed: int = 0
    """Objects that differ from the table."""

    def plus(self, other: ScanCounts) -> ScanCounts:
        return ScanCounts(
            self.objects + other.objects,
            self.bytes + other.bytes,
            self.pages + other.pages,
            max(self.end, other.end),
            self.skipped + other.skipped,
            (*self.named, *other.named)[:_NAMED],
            self.new + other.new,
            self.changed + other.changed,
        )


@dataclass(frozen=True)
class ScanState:
    """A scan: its parameters, its counts, and the shards that are left."""

    what: tuple[str, ...]
    """Bucket, prefix, versions, topic, log and `everything`. A state with other parameters belongs to another scan."""
    began_at: str
    left: tuple[ShardProgress, ...]
    tally: ScanCounts = field(default_factory=ScanCounts)

    def after(self, left: Sequence[ShardProgress], tally: ScanCounts) -> ScanState:
        return replace(self, left=tuple(left), tally=self.tally.plus(tally))


class ScanStateFile:
    """The state file of one scan. Only one process at a time holds it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, what: tuple[str, ...]) -> ScanState | None:
        """Returns the interrupted scan; None if there is none, or the file is unreadable."""
        try:
            found = json.loads(self._path.read_bytes())
            if found["version"] != _VERSION or tuple(found["what"]) != what:
                return None
            tally = found["tally"] | {"named": tuple(Skipped(**s) for s in found["tally"]["named"])}
            left = tuple(ShardProgress(Shard(p["prefix"], p["deep"]), p["position"]) for p in found["left"])
            return ScanState(what, found["began_at"], left, ScanCounts(**tally))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, state: ScanState) -> None:
        text: dict[str, Any] = {
            "version": _VERSION,
            "what": state.what,
            "began_at": state.began_at,
            "tally": asdict(state.tally),
            "left": [{**asdict(part.shard), "position": part.position} for part in state.left],
        }
        # ASCII, because file names may not be valid Unicode.
        write_file(self._path, json.dumps(text).encode(), mode=0o600)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


@contextmanager
def state_file(settings: Settings, bucket: str, prefix: str) -> Iterator[ScanStateFile]:
    """Holds the state file of scans of a bucket and prefix during the block.

    Raises:
        LockedError: another scan of the same bucket and prefix is running.
        NotAllowedError: it cannot be created.
    """
    folder = settings.model.home / "content" / "scans"
    name = hashlib.sha256(json.dumps([bucket, prefix]).encode()).hexdigest()[:32]
    try:
        make_private_folder(folder)
        lock = open(folder / f"{name}.lock", "w", opener=open_private)  # noqa: SIM115 - closed below
    except OSError as error:
        raise NotAllowedError(
            f"{folder} cannot be written", cause=error.strerror, hint="check its rights, or --set home=DIR"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LockedError(f"another scan of {bucket} is running", hint="wait until it ends") from None
        yield ScanStateFile(folder / f"{name}.json")
