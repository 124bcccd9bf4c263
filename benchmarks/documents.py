"""Documents: reads and writes of the stores at growing size, against bare SQL on SQLite and DuckDB on the same rows."""

from __future__ import annotations

import datetime
import json
import os
import random
import shutil
import sqlite3
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import duckdb
import numpy as np

from benchmarks.documents_scan import parallel_scans
from benchmarks.lake import FRAZIL, memory
from benchmarks.measure import Result, seconds
from benchmarks.server import http_server
from benchmarks.targets import verdict
from frazil.documents.arrow import revisions_to_table
from frazil.documents.decide import StoredRevision
from frazil.documents.iceberg.store import IcebergDocumentStore, open_iceberg_store
from frazil.documents.migration import plan_migration, run_migration
from frazil.documents.model import Document, Revision
from frazil.documents.open import open_store
from frazil.documents.sql.store import SqlDocumentStore
from frazil.documents.store import DocumentFilter, DocumentStore, Write
from frazil.documents.transfer import Format
from frazil.documents.transfer.exports import export_documents
from frazil.documents.transfer.imports import import_documents
from frazil.settings import Settings, load_settings
from frazil.topics import open_log

#: BENCH_DOCUMENTS=10000000 adds the largest run.
_LARGEST = int(os.environ.get("BENCH_DOCUMENTS", "1000000"))
SIZES = tuple(size for size in (10_000, 100_000, 1_000_000, 10_000_000) if size <= _LARGEST)
#: Sizes from which on a document has one revision instead of three.
_SINGLE = 10_000_000
_BEGIN = datetime.datetime(2006, 1, 1, tzinfo=datetime.UTC)
_DAYS = 7_300
_TIERS = ("standard", "infrequent", "archive", "deep_archive")
_PROVIDERS = ("aws", "minio", "ceph", "azure")
_CHUNK = 20_000
_CLIENTS = 16
_READS = 200


def run() -> list[Result]:
    found: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder:
        for size in SIZES:
            home = Path(folder) / f"home-{size}"
            settings = load_settings(flags={"home": str(home), "database.url": "iceberg"}, environ={})
            found += _measure(settings, size)
    return found + parallel_scans()


def _measure(settings: Settings, size: int) -> list[Result]:
    found: list[Result] = []
    revisions = 3 if size < _SINGLE else 1
    database = settings.model.home / "documents.db"
    with open_store(settings, f"sqlite:///{database}") as plain:
        assert isinstance(plain, SqlDocumentStore)
        clock = Stopwatch()
        for batch in _histories(size, revisions):
            rows = revisions_to_table([StoredRevision(revision) for revision in batch])
            with clock:
                plain.load_table(rows)
        found.append(_bulk("load into the SQLite store", size, revisions, clock))
        with open_log(settings) as log, open_iceberg_store(settings, log) as store:
            with Stopwatch() as clock:
                plan = plan_migration(plain, store, ("sqlite", "iceberg"))
                run_migration(plain, store, plan)
            found.append(_bulk("migration from SQLite to Iceberg, with its verification", size, revisions, clock))
            found += _reads(store, size, revisions, "Iceberg store")
            found += _writes(store, size)
            found += _batches(store, size)
            with Stopwatch() as clock:
                store.rebuild()
            found.append(_bulk("projection rebuilt", size, revisions, clock))
            now, highest = memory(os.getpid())
            limit = 500 if size <= 1_000_000 else 2048
            found.append(
                Result(
                    f"resident memory of this process, {size:,} documents", f"{now:.0f} MiB",
                    f"highest {highest:.0f} MiB", target=verdict(now <= limit, f"≤ {limit} MiB"),
                )
            )  # fmt: skip
        found += _over_http(settings, size)
        found += _imports(settings, plain, size)
        found += _reads(plain, size, revisions, "SQLite store")
    found += _floors(database, size)
    return found


def _imports(settings: Settings, source: SqlDocumentStore, size: int) -> Iterator[Result]:
    """Imports of one file into an empty store."""
    forms: tuple[Format, ...] = ("parquet", "ndjson", "csv")
    for form in forms if size <= 100_000 else forms[:2]:
        home = settings.model.home / f"import-{form}"
        own = load_settings(flags={"home": str(home), "database.url": "iceberg"}, environ={})
        with tempfile.TemporaryFile() as file, open_log(own) as log, open_iceberg_store(own, log) as store:
            export_documents(source, file, form)
            file.seek(0)
            with Stopwatch() as clock:
                import_documents(store, file, form)
        yield _bulk(f"import of one {form} file into Iceberg, acknowledged", size, 1, clock)
        shutil.rmtree(home)


class Stopwatch:
    """Adds up the seconds of blocks: of the clock, and of processors, which other processes disturb less."""

    def __init__(self) -> None:
        self.seconds = self.cpu = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began[0]
        self.cpu += time.process_time() - self._began[1]


def document(number: int, chance: random.Random) -> Document:
    created = _BEGIN + datetime.timedelta(days=number % _DAYS, seconds=chance.randrange(86_400))
    return Document(
        document_id=f"doc-{number:010d}",
        filename=f"scan-{number:010d}.pdf",
        content_type="application/pdf",
        size_bytes=chance.randrange(1, 1 << 24),
        checksum=f"sha256:{number:064x}",
        provider=_PROVIDERS[number % len(_PROVIDERS)],
        bucket="archive",
        object_key=f"{created:%Y/%m/%d}/scan-{number:010d}.pdf",
        storage_tier=_TIERS[chance.randrange(len(_TIERS))],
        created_at=created,
        updated_at=created,
        tags={"project": f"p{number % 100}"},
        attributes={"pages": number % 50},
        revision=1,
    )


def _histories(size: int, count: int) -> Iterator[list[Revision]]:
    """Yields histories in batches, as an import or a migration does."""
    chance = random.Random(1)
    history: list[Revision] = []
    for number in range(size):
        made = document(number, chance)
        history.append(Revision(made, "put", made.created_at))
        for revision in range(2, count + 1):
            moment = made.created_at + datetime.timedelta(days=30 * revision)
            made = replace(made, revision=revision, updated_at=moment, attributes={"pages": number % 50, "v": revision})
            history.append(Revision(made, "update", moment))
        if len(history) >= _CHUNK:
            yield history
            history = []
    yield history


def _bulk(what: str, size: int, revisions: int, clock: Stopwatch) -> Result:
    """The target is judged by processor time, as if no other process were there."""
    count = size * revisions
    with_revisions = f" with {revisions} revisions" if revisions > 1 else ""
    return Result(
        f"{what}: {size:,} documents{with_revisions}",
        f"{count / clock.cpu:,.0f} revisions per CPU second", f"{count / clock.seconds:,.0f} revisions/s by the clock",
        target=verdict(count / clock.cpu >= 100_000, "≥ 100,000 per CPU second"),
    )  # fmt: skip


def p50(action: Callable[[], object], times: int = _READS) -> float:
    """Median seconds of an action, which is stopped after ten seconds."""
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < times and (not taken or time.perf_counter() - began < 10):
        taken.append(seconds(action))
    return float(np.percentile(taken, 50))


def _reads(store: DocumentStore, size: int, revisions: int, name: str) -> list[Result]:
    chance = random.Random(2)
    is_sql = isinstance(store, SqlDocumentStore)

    def week() -> DocumentFilter:
        start = _BEGIN + datetime.timedelta(days=chance.randrange(_DAYS - 7))
        return DocumentFilter(
            storage_tier=chance.choice(_TIERS), start_date=start, end_date=start + datetime.timedelta(days=7)
        )

    def some_id() -> str:
        return f"doc-{chance.randrange(size):010d}"

    past = _BEGIN + datetime.timedelta(days=_DAYS // 2)
    cases: list[tuple[str, Callable[[], object], float | None]] = [
        ("page of 50 by tier and date", lambda: store.page(week(), limit=50), 0.005 if is_sql else 0.020),
        ("statistics", store.get_statistics, 0.1),
        ("statistics as of a moment", lambda: store.get_statistics(as_of=past), None),
        ("point read", lambda: store.get_metadata(some_id()), 0.005),
        ("the past of one document", lambda: _past(store, some_id()), 0.05),
        ("list of 50 as of a moment", lambda: store.page(week(), as_of=past, limit=50), 1.0),
        ("words in name and tags, first 50", lambda: store.page(DocumentFilter(words="scan p42"), limit=50), None),
    ]
    found = []
    for what, action, limit in cases:
        taken = p50(action)
        is_judged = limit is not None and size == 1_000_000
        target = verdict(taken <= limit, f"p50 ≤ {limit * 1000:.0f} ms") if limit is not None and is_judged else ""
        found.append(Result(f"{what}, {name}, {size:,} documents", f"p50 {taken * 1000:.2f} ms", target=target))
    return found


def _past(store: DocumentStore, document_id: str) -> None:
    latest = store.history(document_id)[0].valid_from
    store.get_time_travel_snapshot(document_id, latest)


def _writes(store: IcebergDocumentStore, size: int) -> list[Result]:
    """Updates of single documents by many clients at once; each is read back."""
    taken = _concurrently(lambda chance: _update(store, size, chance))
    p50_ms, p99_ms = np.percentile(taken, [50, 99]) * 1000
    return [
        Result(
            f"update acknowledged, {_CLIENTS} clients in process, {size:,} documents",
            f"p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms", target=verdict(bool(p50_ms <= 5), "p50 ≤ 5 ms"),
        )
    ]  # fmt: skip


def _update(store: DocumentStore, size: int, chance: random.Random) -> float:
    document_id, value = f"doc-{chance.randrange(size):010d}", chance.randrange(1 << 40)
    began = time.perf_counter()
    store.update_metadata(document_id, {"attributes": {"value": value}})
    return time.perf_counter() - began


def _concurrently(action: Callable[[random.Random], float], for_s: float = 5.0) -> list[float]:
    taken: list[float] = []
    end = time.perf_counter() + for_s

    def work(seed: int) -> None:
        chance = random.Random(seed)
        mine = []
        while time.perf_counter() < end:
            mine.append(action(chance))
        taken.extend(mine)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def _batches(store: IcebergDocumentStore, size: int) -> list[Result]:
    def batch(number: int) -> list[Write]:
        return [
            Write("put", None, {"filename": f"new-{number}-{n}.pdf", "size_bytes": n, "tags": {"batch": str(number)}})
            for n in range(1000)
        ]

    ready = [batch(number) for number in range(50)]
    with Stopwatch() as clock:
        for writes in ready:
            store.write(writes)
    count = 1000 * len(ready)
    return [
        Result(
            f"puts acknowledged in batches of 1,000, one client, {size:,} documents",
            f"{count / clock.cpu:,.0f} documents per CPU second",
            f"{count / clock.seconds:,.0f} documents/s by the clock",
            target=verdict(count / clock.cpu >= 50_000, "≥ 50,000 per CPU second"),
        )
    ]  # fmt: skip


def _over_http(settings: Settings, size: int) -> list[Result]:
    flags = ["--set", f"home={settings.model.home}", "--set", "database.url=iceberg"]
    with http_server(FRAZIL, flags) as (address, pid):

        def update(chance: random.Random) -> float:
            document_id, value = f"doc-{chance.randrange(size):010d}", chance.randrange(1 << 40)
            url, body = f"{address}/api/v1/documents/{document_id}", {"attributes": {"value": value}}
            began = time.perf_counter()
            _ask("PATCH", url, body)
            return time.perf_counter() - began

        def read_own_write(chance: random.Random) -> None:
            document_id, value = f"doc-{chance.randrange(size):010d}", chance.randrange(1 << 40)
            url = f"{address}/api/v1/documents/{document_id}"
            _ask("PATCH", url, {"attributes": {"value": value}})
            assert _ask("GET", url)["attributes"]["value"] == value

        read_own_write(random.Random(99))
        taken = _concurrently(update)
        resident = memory(pid)[0]
    p50_ms, p99_ms = np.percentile(taken, [50, 99]) * 1000
    met = bool(p50_ms <= 25 and p99_ms <= 100)
    return [
        Result(
            f"update acknowledged, {_CLIENTS} clients over HTTP, {size:,} documents",
            f"p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms", f"server {resident:.0f} MiB resident",
            target=verdict(met, "p50 ≤ 25 ms, p99 ≤ 100 ms"),
        )
    ]  # fmt: skip


def _ask(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def _floors(database: Path, size: int) -> list[Result]:
    """The same page and statistics as bare SQL: on the file of the SQLite store, and on DuckDB with the same rows."""
    chance = random.Random(3)

    def bounds() -> tuple[str, int, int]:
        start = _BEGIN + datetime.timedelta(days=chance.randrange(_DAYS - 7))
        micros = int(start.timestamp() * 1_000_000)
        return chance.choice(_TIERS), micros, micros + 7 * 86_400_000_000

    page = (
        "SELECT * FROM documents WHERE storage_tier = ? AND created_at >= ? AND created_at < ? "
        "ORDER BY created_at DESC, document_id DESC LIMIT 50"
    )
    totals = "SELECT provider, storage_tier, restore_status, count(*), sum(size_bytes) FROM documents GROUP BY 1, 2, 3"
    bare = sqlite3.connect(database)
    duck = duckdb.connect()
    columns = [row[1] for row in bare.execute("PRAGMA table_info(documents)")]
    rows = bare.execute("SELECT * FROM documents").fetchall()
    import pyarrow as pa

    arrow = pa.table({name: [row[i] for row in rows] for i, name in enumerate(columns)})
    del rows
    duck.execute("CREATE TABLE documents AS SELECT * FROM arrow")
    found = []
    for name, connection in (("bare SQL on SQLite", bare), ("DuckDB, its own table", duck)):
        read: Callable[[str, Sequence[Any]], Any] = partial(_fetch, connection)
        for what, action in (
            ("page of 50 by tier and date", lambda read=read: read(page, bounds())),
            ("statistics", lambda read=read: read(totals, ())),
        ):
            found.append(Result(f"floor: {what}, {name}, {size:,} documents", f"p50 {p50(action, 50) * 1000:.2f} ms"))
    bare.close()
    duck.close()
    del arrow
    return found


def _fetch(connection: Any, statement: str, parameters: Sequence[Any]) -> Any:
    return connection.execute(statement, parameters).fetchall()
