"""What one can do with a log, wherever it is: in this process (`Log`) or behind a broker (`Client`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

import pyarrow as pa

from frazil.errors import (
    ConflictError,
    IntegrityError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from frazil.log.batch import Batch

Storage = Literal["log", "iceberg"]


class Level(StrEnum):
    """How safe a message is when its acknowledgement comes."""

    memory = "memory"
    """It is in this process. A crash of the process loses it."""
    os = "os"
    """It is handed to the operating system. A crash of the process does not lose it; a power cut may."""
    disk = "disk"
    """fdatasync has returned. The default."""


LEVEL_OF_MODE = {"always": Level.disk, "periodic": Level.os, "none": Level.memory}


class OffsetGoneError(NotFoundError):
    """Retention has removed the range. `start` is the first offset that can be read."""

    http_status = 410

    def __init__(self, message: str, *, start: int = 0, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, cause=cause, hint=hint)
        self.start = start

    def __reduce__(self) -> tuple[Any, ...]:
        return _offset_gone, (self.message, self.start, self.cause, self.hint)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"start": self.start}


def _offset_gone(message: str, start: int, cause: str | None, hint: str | None) -> OffsetGoneError:
    return OffsetGoneError(message, start=start, cause=cause, hint=hint)


class Ack(NamedTuple):
    """What a producer is told: its batch has the offsets `offset` … `offset + count - 1`, safe at this level."""

    topic: str
    offset: int
    """-1 at level `memory`, where it is not known yet, and for a retry older than the remembered batches."""
    count: int  # type: ignore[assignment]  # hides tuple.count
    level: Level
    time_us: int
    duplicate: bool = False

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


#: Refusals after which a batch is not in the log, for sure. After any other, such as a failed sync, it may be.
NOT_TAKEN = (UsageError, IntegrityError, ConflictError, NotAllowedError, NotFoundError, UnavailableError)


@dataclass(frozen=True)
class Registration:
    """A producer's identity. A name that registers again keeps its id and gets the next epoch; older ones are out.

    From now on nothing more is taken under the epoch before, so that this is final: which one that was, the last
    sequence that was taken under it, and of its last batches sequence, offset, messages and time.
    """

    producer_id: int
    producer_epoch: int
    before_epoch: int = -1
    before_last: int = -1
    before: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Span:
    """A range of offsets, and how many bytes it has in the log."""

    start: int
    end: int
    size: int
    time_us: int = 0
    """When the first message of the first span was published."""


@dataclass(frozen=True)
class Chunk:
    """Whole frames of one segment, and the names of producers that may occur in them."""

    segment_id: int
    data: pa.Buffer
    producers: dict[int, str]


@dataclass(frozen=True)
class Retained:
    """What retention has removed, or would remove."""

    segments: int
    size: int
    start: int
    """The first offset that can be read from the log afterwards."""


@dataclass(frozen=True)
class Imported:
    """Segments that were put in place before the log's start."""

    segments: int
    start: int
    """The first offset that the log has now."""


@dataclass(frozen=True)
class TopicInfo:
    """A topic as its log knows it."""

    name: str
    log_id: str
    epoch: int
    storage: Storage
    created_at: str
    broker_addr: str
    sync_mode: str
    start: int
    """The first offset that the log still has."""
    end: int
    """The visible end: all below is on disk."""
    written: int
    """The end of what is written, on disk or not."""
    size: int
    """Bytes of its segments."""
    segments: int
    first_time_us: int | None
    last_time_us: int | None
    extra: pa.Schema
    """Columns that producers have brought."""
    sinks: dict[str, int | None] = field(default_factory=dict)
    """Enabled sinks, and up to which offset each has committed."""
    subscriptions: dict[str, int] = field(default_factory=dict)
    retention_age_s: float | None = None
    retention_bytes: int | None = None
    problem: str | None = None
    """Why the topic cannot be used, where that is so; its offsets are then unknown."""
    refuses: str | None = None
    """Why the topic takes no messages, where that is so; what it has can be read."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Offsets between start and end of which it has nothing: an older copy that was brought back, or a repair."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the extra columns as names and types, and the Arrow schema for those who rebuild it."""
        plain = {f: getattr(self, f) for f in self.__dataclass_fields__ if f != "extra"}
        return plain | {"columns": {f.name: str(f.type) for f in self.extra}, "schema": encode_schema(self.extra)}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Self:
        plain = {k: v for k, v in given.items() if k in cls.__dataclass_fields__}
        plain["gaps"] = [(start, end) for start, end in plain.get("gaps", ())]
        return cls(**plain, extra=decode_schema(given["schema"]))

    @property
    def view(self) -> TopicView:
        return TopicView(self.name, self.broker_addr, self.extra)


@dataclass(frozen=True)
class TopicView:
    """What is needed to read a topic's frames as messages."""

    topic: str
    broker_addr: str
    extra: pa.Schema


def encode_schema(schema: pa.Schema) -> str:
    return bytes(schema.serialize()).hex()


def decode_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))


class LogAccess(Protocol):
    """A log that one can publish to and read from. Methods raise `NotFoundError` for a topic that is not there."""

    @property
    def where(self) -> str:
        """For people: `log at …` or `broker at grpc://…`."""
        ...

    @property
    def key(self) -> str | None:
        """The key by which executors prove to the broker that they belong to this installation; None: not known."""
        ...

    def create_topic(self, name: str, *, storage: Storage = "log", exist_ok: bool = False) -> TopicInfo: ...
    def topics(self) -> list[TopicInfo]: ...
    def info(self, topic: str) -> TopicInfo: ...
    def delete_topic(self, topic: str) -> None: ...

    def configure(self, topic: str, changes: dict[str, Any]) -> TopicInfo:
        """Changes `storage`, `sinks` (a list of names), `retention_age_s`, `retention_bytes`, `floor`.

        No offset below the floor is given out. It only rises.
        """
        ...

    def register(self, topic: str, name: str | None = None, producer_id: int | None = None) -> Registration:
        """Makes a producer known. A known name, or the id of one without a name, gets the next epoch."""
        ...

    def append(self, topic: str, batch: Batch, level: Level | None = None, *, internal: bool = False) -> Ack:
        """Appends a batch, and returns when it is as safe as the level says (by default that of the sync mode).

        Args:
            topic: the topic.
            batch: its messages.
            level: how safe they have to be.
            internal: they come from a component of Frazil, and may have the header that says so; see `trust`.

        Raises:
            NotAllowedError: `internal`, and this process cannot prove that it belongs to the log's installation.
        """
        ...

    def sync(self, topic: str) -> int:
        """Makes everything written durable, and returns the visible end."""
        ...

    def wait(self, topic: str, offset: int, timeout: float) -> int:
        """The visible end, as soon as it lies beyond `offset`, or when the timeout is over."""
        ...

    def chunks(self, topic: str, start: int, end: int | None = None) -> Iterator[Chunk]:
        """The visible frames of a range, in order; the first and the last may reach beyond it.

        Raises:
            OffsetGoneError: the range begins below the log's start.
        """
        ...

    def spans(self, topic: str, start: int, max_bytes: int, pieces: int) -> list[Span]:
        """What to take next: at most about `max_bytes` from `start` on, cut into up to `pieces` of like size."""
        ...

    def offset_at(self, topic: str, time_us: int) -> int:
        """The first visible offset that was published at or after a time; the visible end if there is none."""
        ...

    def epoch_below(self, topic: str, offset: int) -> int:
        """The epoch of the last visible message below an offset; 0 where the log has none."""
        ...

    def report(self, topic: str, sink: str, offset: int) -> None:
        """Tells that a sink has committed everything below an offset; retention waits for all enabled sinks."""
        ...

    def retain(
        self, topic: str, *, age_s: float | None = None, size: int | None = None, dry_run: bool = False
    ) -> Retained:
        """Removes committed segments older than an age or beyond a size; by default as the topic's settings say."""
        ...

    def commit(self, topic: str, subscription: str, offset: int) -> None:
        """Stores the position of a subscription: the next offset that it wants."""
        ...

    def import_segments(self, topic: str) -> Imported:
        """Puts segments in place that a migration has made, in the topic's folder, for the time before the start."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
