"""Chapter 6: an archive of documents, its past, and its move from SQLite to Iceberg."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from frazil.demo.session import SharedSession
from frazil.demo.stage import Stage
from frazil.documents.migration import plan_migration, run_migration
from frazil.documents.migration_stores import open_source
from frazil.documents.model import Document
from frazil.documents.names import metadata_name
from frazil.documents.open import open_store, store_url
from frazil.documents.store import DocumentStore
from frazil.documents.transfer.imports import import_documents
from frazil.errors import IntegrityError
from frazil.query import run_sql
from frazil.settings import Settings
from frazil.topics import connect, flight_address
from frazil.topics.connection import silent
from frazil.topics.sinks.pipeline import Pipeline

_DOCUMENTS = 10_000
_DAYS = 20 * 365
_TIERS = ("standard", "infrequent", "archive", "deep_archive")
_PROVIDERS = ("aws", "minio", "ceph")
_PROJECTS = ("apollo", "gemini", "mercury", "voyager")
_CHOSEN = "contract-00042"


def chapter(stage: Stage, settings: Settings, session: SharedSession) -> None:
    stage.chapter("Chapter 6: an archive of documents, its history, and its migration to Iceberg")
    file = settings.model.home.parent / "documents.ndjson"
    _write(file)
    with open_store(settings, "sqlite") as store:
        step = f"frazil docs import {file.name}: {_DOCUMENTS:,} documents into SQLite, which needs no server"
        with stage.step(step) as record, file.open("rb") as rows:
            record |= import_documents(store, rows, "ndjson").to_dict()
        totals = store.get_statistics()
        stage.say("frazil docs stats")
        stage.table(["tier", "documents"], [[tier, f"{totals['by_tier'].get(tier, 0):,}"] for tier in _TIERS])
        _travel(stage, store)
    _migrate(stage, settings)
    _merge(stage, settings, session)
    stage.say("The store is a setting: database.url is empty for SQLite, or mysql://…, postgresql://… or iceberg.")


def _write(file: Path) -> None:
    """The same documents each time, of twenty years."""
    chance = random.Random(6)  # noqa: S311 - guards nothing
    first = datetime(2006, 1, 1, tzinfo=UTC)
    with file.open("w") as lines:
        for number in range(_DOCUMENTS):
            created = first + timedelta(days=chance.randrange(_DAYS), seconds=chance.randrange(86_400))
            document: dict[str, Any] = {
                "document_id": f"contract-{number:05d}",
                "filename": f"contract {number:05d}.pdf",
                "content_type": "application/pdf",
                "size_bytes": chance.randrange(10_000, 5_000_000),
                "provider": chance.choice(_PROVIDERS),
                "bucket": "contracts",
                "object_key": f"{created:%Y/%m}/{number:05d}.pdf",
                "storage_tier": "archive" if f"contract-{number:05d}" == _CHOSEN else chance.choice(_TIERS),
                "created_at": created.isoformat(),
                "tags": {"project": chance.choice(_PROJECTS)},
            }
            lines.write(f"{json.dumps(document)}\n")


def _travel(stage: Stage, store: DocumentStore) -> None:
    expiry = datetime.now(UTC) + timedelta(days=7)
    before = store.get_metadata(_CHOSEN)
    with stage.step(f"frazil docs update {_CHOSEN}: restored from the archive for a week"):
        changes = {"restore_status": "restored", "restore_expiry": expiry, "tags": {"audit": "2026"}}
        now = store.update_metadata(_CHOSEN, changes, if_match=before.revision)
    with stage.step(f"frazil docs get {_CHOSEN} --as-of …: the same document before the update"):
        then = store.get_time_travel_snapshot(_CHOSEN, before.updated_at)
    if then != before or now.revision != 2 or now.restore_status != "restored":
        raise IntegrityError(f"the history of {_CHOSEN} has changed", hint="please report it")
    stage.table(["as of", "revision", "tier", "restore", "tags"], [["now", *_shown(now)], ["before", *_shown(then)]])


def _shown(document: Document) -> list[Any]:
    tags = ", ".join(f"{name}={value}" for name, value in sorted(document.tags.items()))
    return [document.revision, document.storage_tier, document.restore_status, tags]


def _migrate(stage: Stage, settings: Settings) -> None:
    with (
        stage.step("frazil docs migrate --from sqlite --to iceberg --yes: copies all revisions and verifies them"),
        open_source(settings, store_url(settings, "sqlite")) as source,
        open_store(settings, "iceberg") as target,
    ):
        report = run_migration(source, target, plan_migration(source, target, ("sqlite", "iceberg")))
    with open_store(settings, "sqlite") as former, open_store(settings, "iceberg") as store:
        is_same = store.history(_CHOSEN) == former.history(_CHOSEN)
    if not is_same:
        raise IntegrityError(f"the history of {_CHOSEN} differs in Iceberg", hint="please report it")
    found = report.fingerprint
    sums = {"documents": found.documents, "revisions": found.revisions}
    rows = [[name, f"{each.count:,}", f"{each.hash:032x}"] for name, each in sums.items()]
    stage.table(["equal in both stores", "count", "hash"], rows)


def _merge(stage: Stage, settings: Settings, session: SharedSession) -> None:
    table = metadata_name(settings)
    tuned, spark = session.settings, session.get()
    with (
        stage.step(f"the pipeline merges them into the Iceberg table {table}"),
        connect(tuned, note=silent) as access,
        flight_address(access) as address,
        Pipeline(tuned, access, spark, address, topics=[tuned.model.documents.topic]) as pipeline,
    ):
        pipeline.drain()
    query = f"SELECT storage_tier, count(*) AS documents FROM {table} GROUP BY storage_tier"  # noqa: S608 - our own name
    with stage.step("DuckDB counts the rows of the table"):
        rows = run_sql(query, settings, engine="duckdb").table.to_pylist()
    with open_store(settings, "iceberg") as store:
        by_tier = store.get_statistics()["by_tier"]
    if {row["storage_tier"]: row["documents"] for row in rows} != by_tier:
        raise IntegrityError("the table differs from the store", hint="please report it")
    stage.table(["tier", "in the table", "in the store"], [[t, f"{n:,}", f"{n:,}"] for t, n in sorted(by_tier.items())])
