"""How far a scan has come, in a small file, so that one that broke off goes on where it was."""

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
#: What was skipped is counted; so many are named.
_NAMED = 20


@dataclass(frozen=True)
class ShardProgress:
    """A shard, and where it goes on; None: at its beginning."""

    shard: Shard
    position: str | None = None


@dataclass(frozen=True)
class ScanCounts:
    """What was seen so far."""

    objects: int = 0
    bytes: int = 0
    pages: int = 0
    end: int = 0
    """The offset behind the last message."""
    skipped: int = 0
    named: tuple[Skipped, ...] = ()
    new: int = 0
    """Objects that the table did not know."""
    changed: int = 0
    """Objects that it knew otherwise."""

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
    """A scan: what it is of, what it has seen, and what is left."""

    what: tuple[str, ...]
    """Bucket, prefix, versions, topic, log and whether all is told: a state of anything else is none of this scan."""
    began_at: str
    left: tuple[ShardProgress, ...]
    tally: ScanCounts = field(default_factory=ScanCounts)

    def after(self, left: Sequence[ShardProgress], tally: ScanCounts) -> ScanState:
        return replace(self, left=tuple(left), tally=self.tally.plus(tally))


class ScanStateFile:
    """The file of one scan. Only one process at a time has it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, what: tuple[str, ...]) -> ScanState | None:
        """The scan that broke off; None where there is none, or the file cannot be made sense of."""
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
        # In ASCII: names of files may be no text.
        write_file(self._path, json.dumps(text).encode(), mode=0o600)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


@contextmanager
def state_file(settings: Settings, bucket: str, prefix: str) -> Iterator[ScanStateFile]:
    """The file for scans of a bucket and prefix, held until the block ends.

    Raises:
        LockedError: another scan of the same runs.
        NotAllowedError: it cannot be made.
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
            raise LockedError(f"another scan of {bucket} runs", hint="wait until it ends") from None
        yield ScanStateFile(folder / f"{name}.json")
