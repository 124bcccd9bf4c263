"""Stores of documents to test, random operations on them, and a plain oracle in memory that says what is right.

A further kind of store needs one entry in `PLACES`.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, update

from frazil.documents.decide import decide_writes, ids_of, keys_of
from frazil.documents.iceberg.store import IcebergDocumentStore
from frazil.documents.model import Column, Document, Revision, parse_time
from frazil.documents.sql.schema import metadata, store_state
from frazil.documents.sql.store import SqlDocumentStore
from frazil.documents.store import DocumentFilter, DocumentStore, Statistics, Write
from frazil.errors import FrazilError, NotFoundError
from frazil.settings import load_settings
from tests.machine import machine_flags
from tests.services.kit import Services

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **delta: float) -> datetime:
        self.now += timedelta(**delta)
        return self.now


@dataclass(frozen=True)
class Place:
    """Where one empty store is. Each call of `open` gives another object for the same store.

    Attributes:
        kind: a key of `PLACES`.
        open: takes `now`, the clock of the store, as an option.
        url: by which another process opens it, if that is enough.
    """

    kind: str
    open: Callable[..., DocumentStore]
    url: str | None = None


def _sqlite(services: Services, folder: Path, use: str) -> Place:
    url = f"sqlite:///{folder / uuid.uuid4().hex / 'documents.db'}"
    return Place("sqlite", lambda **options: SqlDocumentStore(url, **options), url)


def _mysql(services: Services, folder: Path, use: str) -> Place:
    return _on_server("mysql", services.mariadb, use)


def _postgresql(services: Services, folder: Path, use: str) -> Place:
    return _on_server("postgresql", services.postgres, use)


def _iceberg(services: Services, folder: Path, use: str) -> Place:
    flags = {**machine_flags(), "home": str(folder / uuid.uuid4().hex), "log.min_free": "0"}
    settings = load_settings(flags=flags, environ={})
    return Place("iceberg", lambda **options: IcebergDocumentStore(settings, **options))


PLACES: dict[str, Callable[[Services, Path, str], Place]] = {
    "sqlite": _sqlite,
    "mysql": _mysql,
    "postgresql": _postgresql,
    "iceberg": _iceberg,
}
#: Kinds that `make test` runs all of the contract on. The others show their main promises there, all in the deep tier.
MAIN_KINDS = ("sqlite",)

_databases: dict[str, str] = {}


def kinds() -> list[Any]:
    """Returns the kinds of stores as parameters of the whole contract."""
    return [kind if kind in MAIN_KINDS else pytest.param(kind, marks=pytest.mark.deep) for kind in PLACES]


def place_of(kind: str, services: Services, folder: Path, use: str = "test") -> Place:
    """Returns a place with an empty store.

    Args:
        kind: a key of `PLACES`.
        services: where servers are.
        folder: an empty one.
        use: a store stays until another one is made in this process for the same use.
    """
    return PLACES[kind](services, folder, use)


def store_of(kind: str, services: Services, folder: Path, **options: Any) -> DocumentStore:
    """Returns an empty store."""
    return place_of(kind, services, folder).open(**options)


def _on_server(kind: str, server: Any, use: str) -> Place:
    """One database per test process and use, emptied for each test."""
    url = _databases.get(server.url + use)
    if url is None:
        name = f"documents_{uuid.uuid4().hex[:12]}"
        server.query(f"CREATE DATABASE {name}")
        url = _databases[server.url + use] = f"{server.url.rpartition('/')[0]}/{name}"
        SqlDocumentStore(url).close()
    with SqlDocumentStore(url) as store, store._engine.begin() as connection:
        for table in metadata.sorted_tables:
            if table is not store_state:
                connection.execute(delete(table))
        connection.execute(update(store_state).where(store_state.c.name == "clock").values(value=""))
    return Place(kind, lambda **options: SqlDocumentStore(url, **options), url)


# -- the oracle


@dataclass
class Oracle:
    """Histories in a dictionary, and answers by going through all of them."""

    histories: dict[str, list[Revision]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    clock: datetime = datetime(1, 1, 1, tzinfo=UTC)

    def decide(self, writes: Sequence[Write], moment: datetime) -> list[Any]:
        latest = {i: self.histories[i][-1] for i in ids_of(writes) if i in self.histories}
        results = {key: self.results[key] for key in keys_of(writes) if key in self.results}
        return decide_writes(writes, latest, results, self.columns, moment)

    def apply(self, writes: Sequence[Write], done: Sequence[Revision]) -> None:
        """Takes over what a store acknowledged, after a check that it is right. Generated ids come from the store."""
        moment = max(revision.valid_from for revision in done)
        named = [
            Write(w.operation, r.document_id, w.values, w.if_match, w.idempotency_key)
            if w.operation == "put" and w.document_id is None and "document_id" not in w.values
            else w
            for w, r in zip(writes, done, strict=True)
        ]
        for write, given, revision in zip(named, writes, done, strict=True):
            if write.idempotency_key in self.results:
                first, request = self.results[write.idempotency_key]
                assert (revision, given) == (first, request)
                continue
            keyless = Write(write.operation, write.document_id, write.values, write.if_match)
            expected = self.decide([keyless], moment)[0].revision
            assert revision == expected
            assert moment > self.clock, "no moment is acknowledged twice"
            self.histories.setdefault(revision.document_id, []).append(revision)
            if write.idempotency_key is not None:
                self.results[write.idempotency_key] = (revision, given)
        self.clock = max(self.clock, moment)

    def load(self, revisions: Iterable[Revision]) -> None:
        for revision in revisions:
            history = self.histories.setdefault(revision.document_id, [])
            if revision.revision > len(history):
                history.append(revision)

    def at(self, as_of: Any = None) -> dict[str, Document]:
        moment = None if as_of is None else parse_time(as_of)
        found = {}
        for document_id, history in self.histories.items():
            past = [r for r in history if moment is None or r.valid_from <= moment]
            if past and not past[-1].is_deleted:
                found[document_id] = past[-1].document
        return found

    def list(
        self, where: DocumentFilter, sort: str = "created_at", descending: bool = True, as_of: Any = None
    ) -> list[Document]:
        found = [document for document in self.at(as_of).values() if matches(document, where)]

        def key(document: Document) -> Any:
            value = document[sort]
            return (value is not None, value.encode() if isinstance(value, str) else value or 0, document.document_id)

        return sorted(found, key=key, reverse=descending)

    def statistics(self, as_of: Any = None) -> Statistics:
        documents = self.at(as_of).values()

        def count(name: str) -> dict[str, int]:
            values = [document[name] or "unknown" for document in documents]
            return {value: values.count(value) for value in set(values)}

        return Statistics(
            total_documents=len(documents),
            total_size_bytes=sum(document.size_bytes or 0 for document in documents),
            by_provider=count("provider"),
            by_tier=count("storage_tier"),
            by_restore_status=count("restore_status"),
        )


def matches(document: Document, where: DocumentFilter) -> bool:
    for name in ("storage_tier", "provider", "restore_status", "content_type", "bucket", "object_key"):
        wanted = getattr(where, name)
        if wanted is not None and document[name] != wanted:
            return False
    words = (where.words or "").casefold().split()
    texts = [text.casefold() for text in (document.filename, *document.tags, *document.tags.values())]
    size = document.size_bytes
    return (
        (where.start_date is None or document.created_at >= parse_time(where.start_date))
        and (where.end_date is None or document.created_at < parse_time(where.end_date))
        and (where.min_size is None or (size is not None and size >= where.min_size))
        and (where.max_size is None or (size is not None and size <= where.max_size))
        and document.filename.startswith(where.name_prefix or "")
        and all(any(word in text for text in texts) for word in words)
        and all(n in document.tags and v in (None, document.tags[n]) for n, v in where.tags.items())
    )


# -- random operations

#: Texts that databases like to compare, order or quote in their own ways.
TEXTS = (
    "a",
    "A",
    "aa",
    "a ",
    "ä",
    "Ä",
    "straße",
    "STRASSE",
    "100%",
    "1000",
    "a_b",
    "axb",
    "\\",
    "'; DROP TABLE documents; --",
    '"quoted"',
    "<script>alert(1)</script>",
    "\ufffd",
    "\U0001f600",
    "İstanbul",
    "ﬁ",
    "no\u00a0break",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u200bzero",
)
_TIERS = ("standard", "infrequent", "archive", "deep_archive")
_STATES = ("none", "requested", "in_progress", "restored", "expired", "failed")


class Chance:
    """Random writes and filters; the same for the same seed."""

    def __init__(self, seed: int, documents: int = 12) -> None:
        self.random = random.Random(seed)
        self.ids = [f"doc-{n}" for n in range(documents)]
        self.keys = 0

    def text(self) -> str:
        return "".join(self.random.choices(TEXTS, k=self.random.randint(1, 3))).strip() or "a"

    def maybe(self, value: Any) -> Any:
        return value if self.random.random() < 0.6 else None

    def fields(self) -> dict[str, Any]:
        r = self.random
        tier = r.choice(_TIERS)
        made = {
            "filename": self.text(),
            "size_bytes": self.maybe(r.choice((0, 1, 7, 2**40, 2**63 - 1))),
            "provider": self.maybe(r.choice(("aws", "azure", "gcs", "unknown"))),
            "content_type": self.maybe(r.choice(("application/pdf", "text/plain"))),
            "bucket": self.maybe(self.text()),
            "object_key": self.maybe(self.text()),
            "storage_tier": tier,
            "tags": {self.text(): self.text() for _ in range(r.randint(0, 3))},
            "attributes": r.choice(({}, {"n": 1.5, "ok": None, "text": self.text(), "list": [1, {"b": "ü"}]})),
        }
        if tier in ("archive", "deep_archive"):
            made |= {"restore_status": r.choice(_STATES), "restore_expiry": START + timedelta(days=r.randint(1, 9))}
        return made

    def write(self, latest: dict[str, int]) -> Write:
        """A write that may be refused: of a document that does not exist, or with a stale revision."""
        r = self.random
        document_id = r.choice(self.ids)
        revision = latest.get(document_id, 0)
        if_match = r.choice((None, None, None, revision, max(0, revision - 1)))
        key = None
        if r.random() < 0.2:
            self.keys += 1
            key = f"key-{self.keys}"
        match r.choice(("put", "put", "new", "update", "update", "update", "delete", "undelete")):
            case "put":
                created = {"created_at": START - timedelta(days=r.randint(0, 4))} if revision == 0 else {}
                return Write("put", document_id, self.fields() | created, if_match, key)
            case "new":
                return Write("put", None, self.fields(), None, key)
            case "update":
                fields = self.fields()
                chosen = r.sample(sorted(fields), r.randint(1, 4))
                return Write("update", document_id, {name: fields[name] for name in chosen}, if_match, key)
            case operation:
                return Write(operation, document_id, {}, if_match, key)  # type: ignore[arg-type]

    def filter(self, oracle: Oracle) -> DocumentFilter:
        """A filter that often matches something."""
        r = self.random
        documents = list(oracle.at().values())
        some = r.choice(documents) if documents else None
        made: dict[str, Any] = {}
        for name in r.sample(("storage_tier", "provider", "restore_status", "content_type", "bucket", "object_key"), 6):
            if some is not None and r.random() < 0.12:
                made[name] = some[name]
        if r.random() < 0.2:
            made["start_date"] = START - timedelta(days=r.randint(0, 4))
        if r.random() < 0.2:
            made["end_date"] = (START - timedelta(days=r.randint(0, 3))).isoformat()
        if r.random() < 0.15:
            made["min_size"] = r.choice((0, 1, 7, 8))
        if r.random() < 0.15:
            made["max_size"] = r.choice((0, 6, 2**40, 2**63 - 1))
        if some is not None and r.random() < 0.2:
            made["name_prefix"] = some.filename[: r.randint(0, 3)]
        if some is not None and r.random() < 0.2:
            made["words"] = r.choice((some.filename, some.filename.upper(), self.text()))
        if some is not None and some.tags and r.random() < 0.2:
            name = r.choice(sorted(some.tags))
            made["tags"] = {name: r.choice((some.tags[name], None, "no such value"))}
        return DocumentFilter(**made)


# -- comparisons


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the type of its error."""
    try:
        return call()
    except FrazilError as error:
        return type(error)


def all_pages(store: DocumentStore, where: DocumentFilter | None = None, **options: Any) -> list[Document]:
    found: list[Document] = []
    cursor = None
    while True:
        page = store.page(where, cursor=cursor, **options)
        found += page.documents
        cursor = page.next_cursor
        if cursor is None:
            return found


def require_equal(store: DocumentStore, oracle: Oracle, chance: Chance, moments: Sequence[datetime]) -> None:
    """Compares what a store and the oracle answer about the present and about one moment of the past."""
    r = chance.random
    past = r.choice(moments) + timedelta(microseconds=r.choice((-1, 0, 1))) if moments else START
    for as_of in (None, past):
        where, sort, descending = chance.filter(oracle), r.choice(_SORTS), r.random() < 0.5
        expected = oracle.list(where, sort, descending, as_of)
        options = {"sort": sort, "descending": descending, "as_of": as_of, "limit": r.choice((1, 2, 5, 50))}
        assert all_pages(store, where, **options) == expected, (where, options)
        streamed = [document for batch in store.iterate(where, as_of=as_of) for document in batch]
        assert streamed == oracle.list(where, "created_at", False, as_of)
        assert store.get_statistics(as_of=as_of) == oracle.statistics(as_of)
    for document_id in [*r.sample(chance.ids, 3), *r.sample(sorted(oracle.histories), min(3, len(oracle.histories)))]:
        expected_now, expected_past = oracle.at().get(document_id), oracle.at(past).get(document_id)
        assert outcome(lambda i=document_id: store.get_metadata(i)) == (expected_now or NotFoundError)
        snapshot = outcome(lambda i=document_id: store.get_time_travel_snapshot(i, past))
        assert snapshot == (expected_past or NotFoundError)
        history = oracle.histories.get(document_id)
        assert outcome(lambda i=document_id: store.history(i)) == (history or NotFoundError)


_SORTS = ("created_at", "updated_at", "filename", "size_bytes", "document_id")


def require_same_past(store: DocumentStore, oracle: Oracle) -> None:
    """Compares all revisions of all documents."""
    found: dict[str, list[Revision]] = {}
    for batch in store.revisions():
        for revision in batch:
            found.setdefault(revision.document_id, []).append(revision)
    assert found == oracle.histories
    assert list(found) == sorted(found)


def run_schedule(
    place: Place, seed: int, steps: int, *, disturb: Callable[[DocumentStore], DocumentStore] | None = None
) -> None:
    """Writes at random to a store and to the oracle, and compares what they answer.

    Args:
        place: with an empty store.
        seed: of the random writes.
        steps: how many.
        disturb: called now and then with the store; returns the store that is to be used from then on, after a crash,
            a compaction, or whatever else must not change an answer.
    """
    chance, clock, oracle = Chance(seed), Clock(), Oracle()
    moments: list[datetime] = []
    sent: list[Sequence[Write]] = []
    store = place.open(now=clock)
    for step in range(steps):
        clock.advance(microseconds=chance.random.choice((0, 1, 5, 10**6, -10)))
        latest = {i: history[-1].revision for i, history in oracle.histories.items()}
        batch = [chance.write(latest) for _ in range(chance.random.choice((1, 1, 1, 3)))]
        if sent and chance.random.random() < 0.1:
            batch = list(chance.random.choice(sent))
        done = outcome(partial(store.write, batch))
        if isinstance(done, list):
            oracle.apply(batch, done)
            moments += [revision.valid_from for revision in done]
            sent.append([write for write in batch if write.idempotency_key is not None] or batch[:0])
            sent = [writes for writes in sent if writes]
        else:
            refused = outcome(lambda batch=batch: _refusal(oracle, batch, clock.now))
            assert refused == done, f"seed {seed}, step {step}: {batch}"
        if step % 7 == 0:
            require_equal(store, oracle, chance, moments)
        if disturb is not None and chance.random.random() < 0.1:
            store = disturb(store)
    require_same_past(store, oracle)
    store.close()
    with place.open(now=clock) as again:
        require_equal(again, oracle, chance, moments)
        require_same_past(again, oracle)


def _refusal(oracle: Oracle, batch: Sequence[Write], now: datetime) -> None:
    known = {key: _as_stored(key, *first) for key, first in oracle.results.items()}
    latest = {i: oracle.histories[i][-1] for i in ids_of(batch) if i in oracle.histories}
    decide_writes(batch, latest, known, oracle.columns, now)


def _as_stored(key: str, revision: Revision, request: Write) -> Any:
    from frazil.documents.decide import StoredRevision, _digest

    return StoredRevision(revision, key, _digest(request))
