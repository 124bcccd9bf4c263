"""Documents: reads of the table itself on an S3 server, with one thread and with several."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

from pyiceberg.utils.concurrent import ExecutorFactory

from benchmarks.measure import Result, in_turns
from frazil.documents.arrow import revisions_to_table
from frazil.documents.decide import StoredRevision
from frazil.documents.model import Document, Revision
from frazil.tables.reading.measured_io import Kind, ReadCounts
from tests.documents_iceberg_kit import Home
from tests.services.kit import Services

_DOCUMENTS, _YEARS = 20_000, 5
_THREADS = (1, 8)
_ROUNDS = 3
#: What a request to S3 in the cloud takes, about.
_LATENCY_S = 0.02


def parallel_scans() -> Iterator[Result]:
    """Statistics of all documents from the table: one file per month."""
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder, Services() as services:
        server = services.seaweedfs
        bucket = server.make_bucket(f"bench-{uuid.uuid4().hex[:8]}")
        flags = {f"s3.{name}": str(value) for name, value in server.access.settings().items()}
        home = Home(Path(folder) / "home", {**flags, "catalog.warehouse": bucket})
        with home.owner() as (store, log):
            store.load_table(revisions_to_table([StoredRevision(r) for r in _revisions()]))
            home.advance(log)
            for latency in (0.0, _LATENCY_S):
                reads = store.via_table()
                reads.get_statistics()  # reads the manifests, which stay in memory
                with _delayed(latency):
                    taken = in_turns(_ROUNDS, *(partial(_with_threads, n, reads.get_statistics) for n in _THREADS))
                found = reads.explanation
                added = f", {latency * 1000:.0f} ms added to each request" if latency else ""
                yield Result(
                    f"statistics of {_DOCUMENTS:,} documents via the table, {found.files} files on the local S3 server"
                    f"{added}",
                    f"{_THREADS[1]} threads {taken[1]:.2f} s, {found.requests} requests",
                    f"1 thread {taken[0]:.2f} s, as many requests",
                    f"{taken[0] / taken[1]:.1f} × as fast",
                )


def _revisions() -> Iterator[Revision]:
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    blank = Document("", "", storage_tier="archive", provider="aws", revision=1)
    for number in range(_DOCUMENTS):
        created = begin + timedelta(days=number % (365 * _YEARS))
        made = replace(
            blank, document_id=f"doc-{number:08d}", filename=f"scan-{number}.pdf", size_bytes=number,
            created_at=created, updated_at=created,
        )  # fmt: skip
        yield Revision(made, "put", created)


def _with_threads(count: int, action: Callable[[], object]) -> None:
    """PyIceberg reads files with the threads of one pool."""
    former = ExecutorFactory.get_or_create()
    with ThreadPoolExecutor(count) as pool:
        ExecutorFactory._instance = pool
        try:
            action()
        finally:
            ExecutorFactory._instance = former


@contextmanager
def _delayed(seconds: float) -> Iterator[None]:
    add = ReadCounts.add

    def slow(self: ReadCounts, kind: Kind, size: int) -> None:
        time.sleep(seconds)
        add(self, kind, size)

    with patch.object(ReadCounts, "add", slow) if seconds else patch.object(ReadCounts, "add", add):
        yield
