"""Prepared metadata under a name, in every kind of catalog: what it promises, and what it says it cannot keep."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from frazil.catalogs import flavor_of, open_catalog, rest
from frazil.catalogs.rest import create_raw_table
from frazil.errors import ConflictError, UnsupportedError
from frazil.observe.faultpoints import handled
from frazil.tables import TableStore
from frazil.tables.publishing import PublicationPlan, Published, plan_publication, publish, read_pointer, reserve_table
from tests.lane import Lane
from tests.publishing_kit import metadata_of, prepare, renamed_lists
from tests.tables import append, make_table, offsets_in
from tests.tiers import kinds

pytestmark = pytest.mark.timeout(600)

Json = dict[str, Any]
Identifier = tuple[str, str]


@dataclass
class Room:
    """One catalog, with a namespace for the test."""

    kind: str
    flavor: str
    settings: Any
    store: TableStore
    namespace: str

    def name(self) -> Identifier:
        return self.namespace, f"t_{uuid.uuid4().hex[:8]}"

    def source(self, snapshots: int = 3) -> Json:
        """The metadata of a table with three rows for each snapshot, as far as the catalog keeps them."""
        table = make_table(self.store, ".".join(self.name()))
        for _ in range(snapshots):
            table = append(self.store, table).table
            time.sleep(0.002)
        return metadata_of(self.store.catalog, table)

    @property
    def current_only(self) -> bool:
        return self.flavor == "nessie"

    @property
    def exchanges_pointers(self) -> bool:
        return self.flavor in ("sql", "hive", "glue")

    def plan(self, identifier: Identifier, metadata: Json, **options: bool) -> PublicationPlan:
        options = {"replace": False, "current_only": self.current_only, **options}
        plan = plan_publication(self.store, identifier, metadata, **options)
        return reserve_table(self.store, plan, metadata) if plan.method == "create+updates" else plan

    def prepare(self, plan: PublicationPlan, metadata: Json, **changes: object) -> tuple[str, Json]:
        moved = renamed_lists(self.store.catalog, {**metadata, "location": plan.location or metadata["location"]})
        return prepare(self.store.catalog, moved, table_uuid=plan.uuid or str(uuid.uuid4()), **changes)

    def publish(self, identifier: Identifier, metadata: Json, *, replace: bool = False, **changes: object) -> Published:
        plan = self.plan(identifier, metadata, replace=replace)
        published = publish(self.store, plan, *self.prepare(plan, metadata, **changes))
        assert set(published.losses) <= set(plan.losses), "a loss was not planned"
        return published

    def rows(self, identifier: Identifier, snapshot_id: int | None = None) -> list[int]:
        table = self.store.load(identifier)
        scan = table.scan(selected_fields=("offset",), snapshot_id=snapshot_id)
        return sorted(scan.to_arrow()["offset"].to_pylist())


@pytest.fixture(scope="module", params=kinds())
def room(request, lane_settings) -> Iterator[Room]:
    settings = lane_settings.catalog(request.param)
    network = lane_settings.model.network
    catalog = open_catalog(settings, network)
    namespace = f"pub_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    with TableStore(catalog, settings, network) as store:
        flavor = flavor_of(settings, dict(catalog.properties))
        yield Room(request.param, flavor, lane_settings, store, namespace)
        for name in catalog.list_tables(namespace):  # some cannot be read, which stops the orphan removal of others
            with contextlib.suppress(Exception):
                catalog.drop_table(name)


@pytest.fixture
def lane(room, spark) -> Lane:
    return Lane(room.kind, room.settings, spark)


def test_a_new_name_shows_every_snapshot(room):
    source, target = room.source(), room.name()
    published = room.publish(target, source)
    table = room.store.load(target)
    assert [s.snapshot_id for s in table.metadata.snapshots] == [s["snapshot-id"] for s in source["snapshots"]]
    for number, snapshot in enumerate(source["snapshots"]):
        expected = list(range(3 * (number + 1))) if len(source["snapshots"]) > 1 else list(range(9))
        assert room.rows(target, snapshot["snapshot-id"]) == expected
    assert published.uuid == str(table.metadata.table_uuid) != source["table-uuid"]
    if room.flavor != "s3tables":
        assert published.losses == ()
        log = [(e.timestamp_ms, e.snapshot_id) for e in table.metadata.snapshot_log]
        assert log == [(e["timestamp-ms"], e["snapshot-id"]) for e in source["snapshot-log"]]
    assert offsets_in(append(room.store, table).table) == list(range(12))


def test_a_taken_name_is_refused_and_nothing_changes(room):
    source, target = room.source(1), room.name()
    plan = room.plan(target, source)
    location, metadata = room.prepare(plan, source)
    table = make_table(room.store, ".".join(target)) if plan.method == "register" else room.store.load(target)
    append(room.store, table, 5)
    before = read_pointer(room.store, target)
    with pytest.raises(ConflictError):
        plan_publication(room.store, target, source, replace=False, current_only=room.current_only)
    with pytest.raises(ConflictError):
        publish(room.store, plan, location, metadata)
    assert read_pointer(room.store, target) == before
    assert room.rows(target) == list(range(5))


def test_a_table_goes_back_to_prepared_metadata_and_on_from_there(room):
    source, target = room.source(), room.name()
    room.publish(target, source)
    append(room.store, room.store.load(target), 6)
    saved = metadata_of(room.store.catalog, room.store.load(target))
    append(room.store, room.store.load(target), 4)
    before = read_pointer(room.store, target)
    published = room.publish(target, saved, replace=True)
    assert (published.previous, published.uuid) == (before, saved["table-uuid"])
    table = room.store.load(target)
    assert {s.snapshot_id for s in table.metadata.snapshots} == {s["snapshot-id"] for s in saved["snapshots"]}
    assert room.rows(target) == list(range(15))
    if room.exchanges_pointers:
        assert published.losses == ()
    assert offsets_in(append(room.store, table, 2).table) == list(range(17))


def test_a_publication_may_be_repeated(room):
    source, target = room.source(1), room.name()
    plan = room.plan(target, source)
    prepared = room.prepare(plan, source)
    assert publish(room.store, plan, *prepared) == publish(room.store, plan, *prepared)


def test_a_table_that_has_moved_on_is_not_exchanged(room):
    source, target = room.source(1), room.name()
    room.publish(target, source)
    plan = room.plan(target, source, replace=True)
    prepared = room.prepare(plan, source)
    append(room.store, room.store.load(target))
    before = read_pointer(room.store, target)
    with pytest.raises(ConflictError):
        publish(room.store, plan, *prepared)
    assert read_pointer(room.store, target) == before
    assert room.rows(target) == list(range(6))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("is_applied", [False, True])
def test_a_lost_request_or_reply_publishes_once(room, monkeypatch, replace, is_applied):
    source, target = room.source(2), room.name()
    if replace:
        room.publish(target, source)
    plan = room.plan(target, source, replace=replace)
    location, metadata = room.prepare(plan, source)
    calls = lose_one(room, monkeypatch, plan, is_applied=is_applied)
    published = publish(room.store, plan, location, metadata)
    assert len(calls) == (1 if is_applied else 2)
    assert published.metadata_location == read_pointer(room.store, target)
    assert room.rows(target) == list(range(6))


def test_a_lost_reply_is_found_below_a_later_commit(room, monkeypatch):
    source, target = room.source(2), room.name()
    room.publish(target, source)
    plan = room.plan(target, source, replace=True)
    location, metadata = room.prepare(plan, source)
    lose_one(room, monkeypatch, plan, is_applied=True)

    def commit(step: str) -> None:
        if step == "tables.publish.lookup":
            append(room.store, room.store.load(target))

    with handled(commit):
        if room.flavor == "nessie":  # it lists no earlier metadata files
            with pytest.raises(ConflictError):
                publish(room.store, plan, location, metadata)
        else:
            assert publish(room.store, plan, location, metadata).metadata_location != read_pointer(room.store, target)
    assert room.rows(target) == list(range(9))


def lose_one(room: Room, monkeypatch, plan: PublicationPlan, *, is_applied: bool) -> list[None]:
    """Lets the next publication lose its request, or its reply; returns the list of calls."""
    if room.exchanges_pointers:
        owner, name = room.store.catalog, "insert_pointer" if plan.expected is None else "move_pointer"
    else:
        owner, name = rest, "commit_raw_updates" if plan.method == "updates" else "register_raw_table"
    real, calls = getattr(owner, name), []

    def call(*arguments: object) -> None:
        calls.append(None)
        if is_applied or len(calls) > 1:
            real(*arguments)
        if len(calls) == 1:
            raise ConnectionError("lost")

    monkeypatch.setattr(owner, name, call)
    return calls


# Not on Glue: moto, which stands in for it here, ignores versions.
@pytest.mark.parametrize("room", kinds("glue"), indirect=True)
@pytest.mark.parametrize("replace", [False, True])
def test_one_of_two_publishers_wins(room, replace):
    source, target = room.source(2), room.name()
    if replace:
        room.publish(target, source)
    plan = room.plan(target, source, replace=replace)
    prepared = [room.prepare(plan, source, properties={"number": str(n)}) for n in range(2)]
    if plan.uuid is None:
        prepared = [(location, metadata | {"table-uuid": str(uuid.uuid4())}) for location, metadata in prepared]
    barrier, won, lost = threading.Barrier(2), [], []

    def run(location: str, metadata: Json) -> None:
        catalog = open_catalog(room.store.settings, room.store.network)
        with TableStore(catalog, room.store.settings, room.store.network) as own:
            barrier.wait()
            try:
                publish(own, plan, location, metadata)
                won.append(metadata["properties"]["number"])
            except ConflictError:
                lost.append(metadata["properties"]["number"])

    threads = [threading.Thread(target=run, args=part) for part in prepared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == len(lost) == 1
    assert room.store.load(target).properties["number"] == won[0]
    assert room.rows(target) == list(range(6))


def test_what_the_catalog_cannot_keep_is_refused(room):
    source, target = room.source(1), room.name()
    if room.flavor == "nessie":
        with pytest.raises(UnsupportedError, match="history"):
            plan_publication(room.store, target, source, replace=False)
    if room.flavor == "s3tables":
        with pytest.raises(UnsupportedError, match="assigns"):
            plan_publication(room.store, target, source, replace=False, location="s3://elsewhere/t")
    assert read_pointer(room.store, target) is None


@pytest.mark.parametrize("room", [pytest.param("s3tables", marks=pytest.mark.deep)], indirect=True)
def test_a_reserved_table_is_found_again_after_an_interruption(room):
    source, target = room.source(1), room.name()
    first = room.plan(target, source)
    again = room.plan(target, source)
    assert (again.location, again.uuid, again.expected) == (first.location, first.uuid, first.expected)
    publish(room.store, again, *room.prepare(again, source))
    assert not [key for key in room.store.load(target).properties if key.startswith("frazil.reserved")]
    with pytest.raises(ConflictError):
        room.plan(target, source)


@pytest.mark.parametrize("room", kinds("nessie", "s3tables"), indirect=True)
def test_metadata_that_pyiceberg_cannot_parse_gets_a_name(room):
    source, target = room.source(1), room.name()
    column = {"id": 9, "name": "shape", "required": False, "type": "geometry"}
    schemas = [{**schema, "fields": [*schema["fields"], column]} for schema in source["schemas"]]
    snapshots = [{**s, "first-row-id": 0, "added-rows": 3} for s in source["snapshots"]]
    changes = {"format_version": 3, "schemas": schemas, "last_column_id": 9, "next_row_id": 3}
    location, metadata = prepare(room.store.catalog, {**source, "snapshots": snapshots}, **changes)
    published = publish(room.store, room.plan(target, metadata), location, metadata)
    assert published.metadata_location == read_pointer(room.store, target) == location
    if room.exchanges_pointers:
        later, metadata = prepare(room.store.catalog, metadata, properties={"later": "yes"})
        plan = room.plan(target, metadata, replace=True)
        assert publish(room.store, plan, later, metadata).previous == location


# Tables whose ids have gaps, dropped columns and expired snapshots, by updates alone.


def field(number: int, name: str, kind: object = "long") -> Json:
    return {"id": number, "name": name, "required": False, "type": kind}


def snapshot(base: Json, number: int, sequence: int, parent: int | None, **more: object) -> Json:
    return {
        "snapshot-id": number,
        "timestamp-ms": base["last-updated-ms"] - 1_000_000 + sequence,
        "summary": {"operation": "append"},
        "manifest-list": f"{base['location']}/metadata/list-{number}.avro",
        "schema-id": 0,
        "sequence-number": sequence,
        **({"parent-snapshot-id": parent} if parent else {}),
        **{key.replace("_", "-"): value for key, value in more.items()},
    }


def create(room: Room, identifier: Identifier, version: int) -> Json:
    body = {
        "schema": {"type": "struct", "schema-id": 0, "fields": [field(1, "id"), field(2, "day", "date")]},
        "partition-spec": {"spec-id": 0, "fields": []},
        "write-order": {"order-id": 0, "fields": []},
        "properties": {"format-version": str(version)},
    }
    create_raw_table(room.store.catalog, identifier, body)
    return metadata_of(room.store.catalog, ".".join(identifier))


def with_snapshots(base: Json, *snapshots: Json, **more: object) -> Json:
    current = snapshots[-1]["snapshot-id"]
    return {
        **base,
        "snapshots": list(snapshots),
        "current-snapshot-id": current,
        "refs": {"main": {"snapshot-id": current, "type": "branch"}},
        "snapshot-log": [{"snapshot-id": current, "timestamp-ms": snapshots[-1]["timestamp-ms"]}],
        "last-sequence-number": snapshots[-1]["sequence-number"],
        **{key.replace("_", "-"): value for key, value in more.items()},
    }


ROW_IDS = [pytest.param("rest", id="rest")]


@pytest.mark.parametrize("room", ROW_IDS, indirect=True)
def test_updates_keep_row_ids_and_sequence_numbers_of_expired_snapshots_used(room):
    target = room.name()
    base = create(room, target, 3)
    first = snapshot(base, 11, 5, None, first_row_id=100, added_rows=10)
    second = snapshot(base, 12, 9, 11, first_row_id=150, added_rows=10)
    wanted = with_snapshots(base, first, second, last_sequence_number=12, next_row_id=500)
    wanted["refs"]["old"] = {"snapshot-id": 11, "type": "tag", "max-ref-age-ms": 5_000_000}
    plan = room.plan(target, wanted, replace=True, relocated=True)
    assert publish(room.store, plan, *prepare(room.store.catalog, wanted)).losses == plan.losses == ()
    shown = metadata_of(room.store.catalog, ".".join(target))
    assert (shown["next-row-id"], shown["last-sequence-number"]) == (500, 12)
    with pytest.raises(UnsupportedError) as refused:
        room.plan(target, shown, replace=True)
    assert "row ids" in (refused.value.cause or "")


@pytest.mark.parametrize("room", ROW_IDS, indirect=True)
def test_updates_upgrade_a_table_between_its_snapshots(room):
    target = room.name()
    base = create(room, target, 2)
    snapshots = [snapshot(base, 1, 1, None), snapshot(base, 2, 2, 1)]
    upgraded = snapshot(base, 3, 3, 2, first_row_id=0, added_rows=7)
    wanted = with_snapshots(base, *snapshots, upgraded, format_version=3, next_row_id=7)
    assert room_publish_as_is(room, target, wanted).losses == ()
    shown = metadata_of(room.store.catalog, ".".join(target))
    assert (shown["format-version"], shown["next-row-id"]) == (3, 7)


@pytest.mark.parametrize("room", ROW_IDS, indirect=True)
def test_updates_keep_ids_with_gaps_and_specs_of_dropped_columns(room):
    target = room.name()
    base = create(room, target, 2)
    struct = {"type": "struct", "fields": [field(10, "inner")]}
    schemas = [
        base["schemas"][0],
        {"type": "struct", "schema-id": 3, "fields": [field(1, "id"), field(2, "day", "date"), field(9, "s", struct)]},
        {"type": "struct", "schema-id": 5, "fields": [field(1, "id"), field(3, "name", "string")]},
    ]
    month = {"name": "day_month", "transform": "month", "source-id": 2, "field-id": 1001}
    bucket = {"name": "id_bucket", "transform": "bucket[4]", "source-id": 1, "field-id": 1002}
    order = {"source-id": 2, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    ndv = {"type": "apache-datasketches-theta-v1", "snapshot-id": 2, "sequence-number": 2, "fields": [1]}
    statistics = {"snapshot-id": 2, "statistics-path": f"{base['location']}/metadata/s.puffin"}
    sizes = {"file-size-in-bytes": 10, "file-footer-size-in-bytes": 5, "blob-metadata": [ndv | {"properties": {}}]}
    wanted = with_snapshots(
        base,
        snapshot(base, 1, 1, None),
        snapshot(base, 2, 2, 1, schema_id=5),
        schemas=schemas,
        current_schema_id=5,
        last_column_id=20,
        partition_specs=[
            {"spec-id": 0, "fields": []},
            {"spec-id": 2, "fields": [month]},
            {"spec-id": 3, "fields": [bucket]},
        ],
        default_spec_id=3,
        last_partition_id=1007,
        sort_orders=[{"order-id": n, "fields": [{**order, "source-id": n}] if n else []} for n in range(4)],
        default_sort_order_id=3,
        properties={**base["properties"], "colour": "blue"},
        statistics=[statistics | sizes],
    )
    assert room_publish_as_is(room, target, wanted).losses == ()
    shown = metadata_of(room.store.catalog, ".".join(target))
    assert [schema["schema-id"] for schema in shown["schemas"]] == [0, 3, 5]
    assert [spec["spec-id"] for spec in shown["partition-specs"]] == [0, 2, 3]
    assert (shown["last-column-id"], shown["last-partition-id"]) == (20, 1007)


def room_publish_as_is(room: Room, target: Identifier, wanted: Json) -> Published:
    plan = room.plan(target, wanted, replace=True, relocated=True)
    published = publish(room.store, plan, *prepare(room.store.catalog, wanted))
    assert published.losses == plan.losses
    return published


# What readers and writers see afterwards.


@pytest.mark.spark
@pytest.mark.parametrize("room", kinds("nessie"), indirect=True)
@pytest.mark.parametrize("replace", [False, True])
def test_time_travel_by_timestamp_is_as_it_was(room, lane, replace):
    source, target = room.source(), room.name()
    if replace:
        room.publish(target, room.source(1)) if room.flavor != "s3tables" else make_table(room.store, ".".join(target))
    published = room.publish(target, source, replace=replace)
    name = f"{room.kind}.{'.'.join(target)}"
    log = source["snapshot-log"]
    kept = log[-1:] if published.losses else log
    for entry in kept:
        at = datetime.fromtimestamp(entry["timestamp-ms"] / 1000, UTC).isoformat(timespec="milliseconds")
        found = lane.sql(f"SELECT offset FROM {name} TIMESTAMP AS OF '{at}'")
        assert sorted(row[0] for row in found) == room.rows(target, entry["snapshot-id"])
    assert bool(published.losses) == (not room.exchanges_pointers and (replace or room.flavor == "s3tables"))
    assert sorted(row[0] for row in lane.sql(f"SELECT offset FROM {name}")) == list(range(9))


@pytest.mark.spark
@pytest.mark.parametrize("room", kinds("nessie", "s3tables"), indirect=True)
@pytest.mark.parametrize("replace", [False, True])
def test_new_rows_of_a_v3_table_get_fresh_row_ids(room, lane, replace):
    source, target = room.name(), room.name()
    create_v3(lane, source)
    for first in (0, 10, 20):
        lane.sql(f"INSERT INTO {room.kind}.{'.'.join(source)} SELECT id FROM range({first}, {first + 10})")
    metadata = metadata_of(room.store.catalog, ".".join(source))
    assert metadata["next-row-id"] >= 30
    if replace:
        create_v3(lane, target)
    room.publish(target, metadata, replace=replace)
    name = f"{room.kind}.{'.'.join(target)}"
    lane.sql(f"INSERT INTO {name} SELECT id FROM range(30, 40)")
    found = lane.sql(f"SELECT id, _row_id FROM {name}")
    assert sorted(row[0] for row in found) == list(range(40))
    assert len({row[1] for row in found}) == len(found)
    assert min(row[1] for row in found if row[0] >= 30) >= metadata["next-row-id"]


def create_v3(lane: Lane, identifier: Identifier) -> None:
    name = f"{lane.flavor}.{'.'.join(identifier)}"
    lane.sql(f"CREATE TABLE {name} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version'='3')")
