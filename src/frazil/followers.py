"""Followers of topics: they connect rooms that do not know each other, by what one of them publishes.

`ObjectFollower` reads the events of objects, which `content` understands, and changes the documents of these objects.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from frazil.content.columns import CREATE, DELETE, OBSERVED
from frazil.content.events import parse_message
from frazil.content.events.model import Change
from frazil.content.events.parse import DIALECT_HEADER
from frazil.documents.model import Revision, parse_time
from frazil.documents.object_events import Inspected, Kind, ObjectEvent, decide_event, document_id_of
from frazil.documents.store import DocumentStore, Write
from frazil.errors import ConflictError, FrazilError, NotFoundError, UnavailableError, UsageError
from frazil.log.protocol import LogAccess, OffsetGoneError
from frazil.log.trust import is_marked
from frazil.observe.backoff import Backoff
from frazil.observe.logs import get_logger
from frazil.observe.metrics import counter
from frazil.observe.resilience import breaker_for
from frazil.settings import Settings
from frazil.storage import parse
from frazil.storage.files import open_files
from frazil.topics.reading.reader import TopicReader
from frazil.topics.reading.subscription import Subscription

#: The name of the position that is kept in the log.
SUBSCRIPTION: Final = "documents"
EVENTS = counter(
    "frazil_documents_object_events_total",
    "Object events of followed buckets, by outcome: applied, unchanged, refused",
    "outcome",
)
_RESTORES: Final[dict[str, Kind]] = {
    "ObjectRestore:Post": "restore_started",
    "ObjectRestore:Completed": "restored",
    "ObjectRestore:Delete": "restore_expired",
    "Object Restore Initiated": "restore_started",
    "Object Restore Completed": "restored",
    "Object Restore Expired": "restore_expired",
}
#: Documents that one write of the store changes at most.
_BATCH: Final = 500
#: Events for which the bucket is asked, and how many objects at once.
_ASKING: Final = ("created", "removed")
_INSPECTIONS: Final = 16
_ATTEMPTS: Final = 5
#: Seconds between two looks for a topic that does not exist yet.
_WAIT_S: Final = 1.0
#: Seconds that a write which has begun may take to end.
_TO_END_S: Final = 10.0
_COLUMNS: Final = ("offset", "payload", "headers")
_BACKOFF: Final = Backoff(first=0.5, longest=30.0)

#: Bucket and key.
_Object = tuple[str, str]

log = get_logger(__name__)


class ObjectFollower:
    """Applies the events of followed buckets to documents, each once, in the order of the log.

    The position is a subscription of the log. What was applied after its last commit comes again after a crash; the
    documents themselves tell that it was applied.

    Args:
        access: the log.
        settings: which buckets are followed, and access to them.
        store_of: returns the store; called again after it failed.
    """

    def __init__(self, access: LogAccess, settings: Settings, store_of: Callable[[], DocumentStore]) -> None:
        self._access, self._settings, self._store_of = access, settings, store_of
        self._topic = settings.model.content.topic
        self._dialect = settings.model.content.dialect
        self._followed = settings.model.documents.follow_buckets
        self._threads = ThreadPoolExecutor(_INSPECTIONS, "frazil-object-follower")

    def run(self, stop: threading.Event) -> None:
        """Follows the topic until `stop` is set. What fails for a while is repeated."""
        failures = 0
        while not stop.is_set():
            try:
                for _ in self._batches(stop):
                    failures = 0
            except NotFoundError:  # the first event makes the topic
                stop.wait(_WAIT_S)
            except Exception as error:
                failures += 1
                if isinstance(error, FrazilError):
                    log.warning("object events wait for the document store", error=error.in_one_line)
                else:
                    log.exception("unexpected error in the follower of object events")
                stop.wait(_BACKOFF.pause(failures))

    def catch_up(self) -> int:
        """Applies what the log has by now, and returns how many writes that took."""
        try:
            return sum(self._batches(None))
        except NotFoundError:
            return 0

    def _batches(self, stop: threading.Event | None) -> Iterator[int]:
        """Applies batch by batch, and yields the writes of each."""
        info = self._access.info(self._topic)
        subscription = Subscription(TopicReader(self._access, self._topic), SUBSCRIPTION)
        try:
            for table in subscription.read(
                columns=["payload", "headers", "offset"], follow=stop is not None, stop=stop
            ):
                yield self._apply(list(self._events(table, info.log_id)))
                subscription.commit()
        except OffsetGoneError as error:
            log.warning("object events were removed by retention before documents followed them", start=error.start)
            subscription.commit(error.start)
            yield 0

    def _events(self, table: pa.Table, log_id: str) -> Iterator[ObjectEvent]:
        columns = (table.column(name).to_pylist() for name in _COLUMNS)
        for offset, payload, headers in zip(*columns, strict=True):
            said = dict(headers or ())
            dialect = said.get(DIALECT_HEADER) or self._dialect
            for change in parse_message(payload, dialect, internal=is_marked(said)).changes:
                if change["bucket"] in self._followed:
                    event = event_of(change, log_id, offset)
                    if event is not None:
                        yield event

    def _apply(self, events: list[ObjectEvent]) -> int:
        """Applies events in their order. Those of different objects share a write."""
        if not events:
            return 0
        store = self._store_of()
        return sum(self._apply_batch(store, batch) for batch in _of_different_objects(events))

    def _apply_batch(self, store: DocumentStore, events: list[ObjectEvent]) -> int:
        latest = self._latest(store, events)
        asks = any(event.kind in _ASKING for event in events)  # the bucket, which takes most of the time
        decisions = (self._threads.map if asks else map)(lambda event: self._decide(event, latest), events)
        decided = list(zip(events, decisions, strict=True))
        writes = [write for _, writes in decided for write in writes]
        unchanged = sum(not writes for _, writes in decided)
        EVENTS.labels("unchanged").inc(unchanged)
        try:
            if writes:
                store.write(writes)
        except UnavailableError:
            raise
        except FrazilError:  # one of them is refused: each for itself
            return sum(self._apply_one(store, event) for event, writes in decided if writes)
        EVENTS.labels("applied").inc(len(events) - unchanged)
        return len(writes)

    def _apply_one(self, store: DocumentStore, event: ObjectEvent) -> int:
        error: FrazilError | None = None
        for _ in range(_ATTEMPTS):
            writes = self._decide(event, self._latest(store, [event]))
            try:
                if writes:
                    store.write(writes)
            except UnavailableError:
                raise
            except ConflictError as conflict:
                error = conflict  # somebody else has changed the document meanwhile
            except FrazilError as refused:
                error = refused
                break
            else:
                EVENTS.labels("applied" if writes else "unchanged").inc()
                return len(writes)
        assert error is not None
        EVENTS.labels("refused").inc()
        log.warning(
            "an object event changes no document",
            bucket=event.bucket, key=event.key, offset=event.offset, error=error.in_one_line,
        )  # fmt: skip
        return 0

    def _latest(self, store: DocumentStore, events: list[ObjectEvent]) -> dict[_Object, Revision]:
        """Returns the latest revisions of the documents of objects, under the object's id or another one."""
        ids = {(event.bucket, event.key): document_id_of(event, self._followed[event.bucket]) for event in events}
        by_id = store.latest_revisions(list(ids.values()))
        found = {place: by_id[document_id] for place, document_id in ids.items() if document_id in by_id}
        others = {}
        for bucket, key in ids.keys() - {place for place, revision in found.items() if not revision.is_deleted}:
            with suppress(UsageError):  # no document can have such a key
                for document in store.list_metadata(bucket=bucket, object_key=key, limit=1):
                    others[document.document_id] = (bucket, key)
        return found | {others[name]: revision for name, revision in store.latest_revisions(list(others)).items()}

    def _decide(self, event: ObjectEvent, latest: dict[_Object, Revision]) -> list[Write]:
        return decide_event(event, latest.get((event.bucket, event.key)), self._followed[event.bucket], self._inspect)

    def _inspect(self, bucket: str, key: str, version_id: str) -> Inspected:
        """Describes an object, if this process may ask.

        Raises:
            UnavailableError: the bucket does not answer for now; the events are applied when it does.
        """
        s3, network = self._settings.model.s3, self._settings.model.network
        try:
            files = open_files(parse(f"s3://{bucket}"), s3=s3, network=network.model_copy(update={"retry_attempts": 1}))
            return Inspected(breaker_for(f"objects of {bucket}", network).call(lambda: files.find(key, version_id)))
        except UnavailableError:
            raise
        except FrazilError as error:
            log.debug("an object cannot be inspected", bucket=bucket, key=key, error=error.in_one_line)
            return Inspected(None, is_known=False)


@contextmanager
def following(settings: Settings, access: LogAccess, store_of: Callable[[], DocumentStore]) -> Iterator[None]:
    """Follows object events in a thread within this block, if the settings name buckets."""
    if not settings.model.documents.follow_buckets:
        yield
        return
    stop = threading.Event()
    follower = ObjectFollower(access, settings, store_of)
    thread = threading.Thread(target=follower.run, args=(stop,), name="frazil-object-follower", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_TO_END_S)


def event_of(change: Change, log_id: str, offset: int) -> ObjectEvent | None:
    """Returns a change of `content` as an event of documents; None: it does not concern them."""
    kind = _kind_of(change)
    if kind is None:
        return None
    return ObjectEvent(
        kind=kind,
        bucket=change["bucket"],
        key=change["key"],
        time=change["time"],
        log_id=log_id,
        offset=offset,
        index=change["index"],
        version_id=change["version_id"],
        dialect=change["dialect"],
        sequence=change["sequence"],
        is_marker=change["is_delete_marker"],
        etag=change["etag"],
        size=change["size"],
        content_type=change["content_type"],
        storage_class=change["storage_class"],
        restore_expiry=_expiry_of(change["raw_event"]) if kind == "restored" else None,
    )


def _kind_of(change: Change) -> Kind | None:
    if change["dialect"] == OBSERVED:
        return None
    name = str(change["event_name"]).removeprefix("s3:")
    if (restore := _RESTORES.get(name)) is not None:
        return restore
    if change["record_type"] == DELETE or change["is_delete_marker"]:
        return "removed"
    if change["record_type"] == CREATE:
        return "created"
    is_transition = "Transition" in name or name == "Object Storage Class Changed"
    return "transitioned" if is_transition and change["storage_class"] else None


def _expiry_of(raw_event: str) -> datetime | None:
    """Returns the expiry of a restored copy from an event."""
    record: Any = json.loads(raw_event)
    found = _inside(record, "glacierEventData", "restoreEventData", "lifecycleRestorationExpiryTime")
    found = found or _inside(record, "detail", "restore-expiry-time")
    try:
        return parse_time(found) if isinstance(found, str) and found else None
    except FrazilError:
        return None


def _inside(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _of_different_objects(events: Iterable[ObjectEvent]) -> Iterator[list[ObjectEvent]]:
    """Cuts events into batches in which no object occurs twice, so that each sees what the one before has made."""
    batch: dict[_Object, ObjectEvent] = {}
    for event in events:
        place = (event.bucket, event.key)
        if place in batch or len(batch) >= _BATCH:
            yield list(batch.values())
            batch = {}
        batch[place] = event
    if batch:
        yield list(batch.values())
