"""Chapter 5: a folder of photos, looked into, searched, and a column added while it lives."""

from __future__ import annotations

from typing import Any

from frazil.content.annotations.custom_columns import columns_to_fill
from frazil.content.annotations.messages import fields
from frazil.content.buckets import bucket_of
from frazil.content.extraction.job import extract
from frazil.content.extraction.selection import ExtractionRequest
from frazil.content.fields import FieldSpec
from frazil.content.intake import messages
from frazil.content.names import objects_name
from frazil.content.query.duplicates import duplicates
from frazil.content.query.facets import facet
from frazil.content.query.request import parse_search
from frazil.content.query.search import find
from frazil.content.scan.engine import RunningEngine
from frazil.content.scan.folder import open_folder
from frazil.content.scan.session import ScanSession
from frazil.content.tables import ContentTables
from frazil.content.topic import ensure_events_topic
from frazil.demo.pictures import write
from frazil.demo.session import SharedSession
from frazil.demo.stage import Stage
from frazil.errors import IntegrityError
from frazil.settings import Settings
from frazil.tables.store import LazyStore
from frazil.topics import connect, flight_address
from frazil.topics.connection import silent

_PHOTOS = 120
_LISBON = "38.71,-9.14"
_ISO = FieldSpec.of("iso", "INTEGER", "$.exif.ISOSpeedRatings")


def chapter(stage: Stage, settings: Settings, session: SharedSession) -> None:
    stage.chapter("Chapter 5: extract metadata from a folder of photos, and search it")
    folder = settings.model.home.parent / "photos"
    tuned, spark = session.settings, session.get()
    with stage.step(f"{_PHOTOS} generated photos in {folder.name}/, with EXIF and GPS; one in twenty is a copy"):
        write(folder, _PHOTOS)
    with (
        connect(tuned, note=silent) as access,
        flight_address(access) as address,
        LazyStore(tuned) as store,
    ):
        there = open_folder(bucket_of(str(folder)), tuned)
        work = ScanSession(tuned, access, RunningEngine(spark, address))
        tables = ContentTables.of(store.store(), tuned)
        with stage.step("frazil content scan ./photos: creates the rows, with status pending"):
            work.wait_until_visible(work.scan(there).tally.end)
        with stage.step("the scan continues: extracts metadata, in separate processes") as record:
            done = extract(work, ExtractionRequest(bucket=there.bucket))
            work.wait_until_visible(done.end)
            record["objects"], record["bytes_read"] = done.objects, done.bytes_read
        everything = parse_search(bucket=there.bucket)
        _counts(stage, "camera", facet(tables, everything, "camera", 4))
        with stage.step(f"frazil content search ./photos --near {_LISBON} --radius 10km --sort taken"):
            near = find(
                tables, parse_search(bucket=there.bucket, near=_LISBON, radius="10km"), sort="taken", limit=3
            ).rows
        stage.table(["key", "taken", "camera"], [[r["key"], r["taken_at"], r["camera"]] for r in near])
        same = duplicates(tables, everything)
        stage.say(f"frazil content duplicates ./photos: {same.count} photos have duplicates.")
        _add_column(stage, work, store)
        found = find(
            tables, parse_search(bucket=there.bucket, field=["iso>=1600"]), columns=["key", "iso"], limit=3
        ).rows
        stage.table(["key", "iso"], [[r["key"], r["iso"]] for r in found])
        if not near or not found or not same.count:
            raise IntegrityError("the photos are not found by their metadata", hint="please report it")
    stage.say("For your own photos: frazil content scan ~/Pictures")


def _add_column(stage: Stage, work: ScanSession, store: LazyStore) -> None:
    """As `frazil content backfill --field iso` does it, with the field in the settings."""
    with stage.step(
        f"add a column to the live table: iso INTEGER {_ISO.jpath}, computed from stored JSON without reading photos"
    ):
        topic = ensure_events_topic(work.access, work.settings).name
        order = fields([_ISO.to_json()], cast="lenient", include_raw_metadata=True, backfill=["iso"])
        ack = messages.store(work.access, topic, [order], messages.headers_of("fields"), internal=True)
        work.wait_until_visible(ack.offset + ack.count)
    if columns_to_fill(store.store().load(objects_name(work.settings))):
        raise IntegrityError("the new column is not computed for all photos", hint="please report it")


def _counts(stage: Stage, name: str, groups: list[dict[str, Any]]) -> None:
    stage.table([name, "photos"], [[group["value"], group["objects"]] for group in groups])
