"""Publishing in the embedded catalog: lost replies, other writers, and metadata that PyIceberg cannot parse."""

from __future__ import annotations

import threading
import uuid
from types import SimpleNamespace

import pytest
import sqlalchemy
from pyiceberg.exceptions import CommitFailedException

from frazil.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from frazil.observe.faultpoints import handled
from frazil.settings import NetworkSettings
from frazil.tables import CommitUnknownError, TableStore
from frazil.tables.publishing import plan_publication, publish, read_pointer
from tests.publishing_kit import metadata_of, prepare, renamed_lists
from tests.tables import append, embedded, make_table, offsets_in, open_store

NEW, OLD = ("demo", "restored"), ("demo", "clicks")


@pytest.fixture
def store(tmp_path):
    with open_store(embedded(tmp_path)) as store:
        store.network = NetworkSettings(retry_attempts=3)
        yield store


@pytest.fixture
def source(store):
    """The metadata of a table with three snapshots and nine rows."""
    table = make_table(store, ".".join(OLD))
    for _ in range(3):
        table = append(store, table).table
    return metadata_of(store.catalog, table)


def renewed(store: TableStore, source: dict, **changes: object) -> tuple[str, dict]:
    return prepare(store.catalog, renamed_lists(store.catalog, source), table_uuid=str(uuid.uuid4()), **changes)


def faulty(monkeypatch, store: TableStore, method: str, *faults: str | None) -> SimpleNamespace:
    """Lets the catalog lose the request, or the reply, of the first calls of a method; counts them all."""
    real, left, seen = getattr(store.catalog, method), list(faults), SimpleNamespace(calls=0)

    def call(*arguments: object) -> None:
        seen.calls += 1
        fault = left.pop(0) if left else None
        if fault != "request lost":
            real(*arguments)
        if fault:
            raise ConnectionError(f"{fault}")

    monkeypatch.setattr(store.catalog, method, call)
    return seen


def test_a_new_name_shows_the_exact_file(store, source):
    location, metadata = renewed(store, source)
    plan = plan_publication(store, ("other", "restored"), metadata, replace=False)
    assert (plan.method, plan.losses) == ("register", ())
    published = publish(store, plan, location, metadata)
    assert (published.metadata_location, published.uuid) == (location, metadata["table-uuid"])
    assert (published.losses, published.previous) == ((), None)
    table = store.load("other.restored")
    assert offsets_in(table) == list(range(9))
    assert [e.timestamp_ms for e in table.metadata.snapshot_log] == [e["timestamp-ms"] for e in source["snapshot-log"]]


@pytest.mark.parametrize("fault", ["request lost", "reply lost"])
@pytest.mark.parametrize("replace", [False, True])
def test_a_lost_request_or_reply_publishes_once(store, source, monkeypatch, fault, replace):
    changes = {"table_uuid": source["table-uuid"]} if replace else {"table_uuid": str(uuid.uuid4())}
    location, metadata = prepare(store.catalog, renamed_lists(store.catalog, source), **changes)
    plan = plan_publication(store, OLD if replace else NEW, metadata, replace=replace)
    seen = faulty(monkeypatch, store, "move_pointer" if replace else "insert_pointer", fault)
    assert publish(store, plan, location, metadata).metadata_location == location
    assert seen.calls == (2 if fault == "request lost" else 1)
    assert read_pointer(store, plan.identifier) == location


def test_what_never_gets_an_answer_is_unknown_and_can_be_repeated(store, source, monkeypatch):
    location, metadata = renewed(store, source)
    plan = plan_publication(store, NEW, metadata, replace=False)
    faulty(monkeypatch, store, "insert_pointer", *["request lost"] * 3)
    with pytest.raises(CommitUnknownError):
        publish(store, plan, location, metadata)
    assert publish(store, plan, location, metadata).metadata_location == location


def test_a_publication_whose_lookup_fails_is_unknown(store, source, monkeypatch):
    location, metadata = renewed(store, source)
    plan = plan_publication(store, NEW, metadata, replace=False)
    faulty(monkeypatch, store, "insert_pointer", "reply lost")

    def fail(step: str) -> None:
        if step == "tables.publish.lookup":
            monkeypatch.setattr(store.catalog, "pointer", _unavailable)

    with handled(fail), pytest.raises(CommitUnknownError):
        publish(store, plan, location, metadata)
    monkeypatch.undo()
    assert publish(store, plan, location, metadata).metadata_location == location


def _unavailable(*_: object) -> None:
    raise UnavailableError("the catalog is away")


def test_a_lost_reply_is_found_below_a_later_commit(store, source, monkeypatch):
    location, metadata = prepare(store.catalog, renamed_lists(store.catalog, source))
    plan = plan_publication(store, OLD, metadata, replace=True)
    faulty(monkeypatch, store, "move_pointer", "reply lost")

    def commit(step: str) -> None:
        if step == "tables.publish.lookup":
            append(store, store.load(OLD))

    with handled(commit):
        published = publish(store, plan, location, metadata)
    assert published.metadata_location == location
    assert offsets_in(store.load(OLD)) == list(range(12))


def test_a_taken_name_is_refused_and_keeps_its_table(store, source):
    location, metadata = renewed(store, source)
    with pytest.raises(ConflictError, match=r"demo\.clicks exists"):
        plan_publication(store, OLD, metadata, replace=False)
    plan = plan_publication(store, NEW, metadata, replace=False)
    mine, _ = renewed(store, source)
    publish(store, plan, mine, metadata)
    with pytest.raises(ConflictError, match="was created"):
        publish(store, plan, location, metadata)
    assert read_pointer(store, NEW) == mine


def test_a_name_that_a_view_has_is_taken(store, source):
    location, metadata = renewed(store, source)
    plan = plan_publication(store, NEW, metadata, replace=False)
    row = {"c": store.catalog.name, "l": "file:///somewhere/view.metadata.json"}
    with store.catalog.engine.begin() as connection:
        connection.execute(
            sqlalchemy.text("INSERT INTO iceberg_tables VALUES (:c, 'demo', 'restored', :l, NULL, 'VIEW')"), row
        )
    assert read_pointer(store, NEW) is None
    with pytest.raises(ConflictError):
        publish(store, plan, location, metadata)
    with pytest.raises(NotFoundError):
        plan_publication(store, NEW, metadata, replace=True)


def test_a_table_that_has_changed_is_not_exchanged(store, source):
    location, metadata = prepare(store.catalog, source)
    plan = plan_publication(store, OLD, metadata, replace=True)
    append(store, store.load(OLD))
    with pytest.raises(ConflictError, match="was changed"):
        publish(store, plan, location, metadata)
    assert offsets_in(store.load(OLD)) == list(range(12))


def test_a_commit_on_the_replaced_state_is_refused(store, source):
    stale = store.load(OLD)
    location, metadata = prepare(store.catalog, renamed_lists(store.catalog, source))
    published = publish(store, plan_publication(store, OLD, metadata, replace=True), location, metadata)
    assert published.previous == stale.metadata_location
    with pytest.raises(CommitFailedException):
        store.catalog.move_pointer(OLD, stale.metadata_location, "file:///elsewhere.metadata.json")
    assert offsets_in(append(store, stale).table) == list(range(12))


@pytest.mark.parametrize("replace", [False, True])
def test_one_of_several_publishers_wins(store, source, tmp_path, replace):
    prepared = [prepare(store.catalog, source, properties={"number": str(n)}) for n in range(4)]
    identifier = OLD if replace else NEW
    plan = plan_publication(store, identifier, source, replace=replace)
    barrier, won, lost = threading.Barrier(len(prepared)), [], []

    def run(location: str, metadata: dict) -> None:
        with open_store(embedded(tmp_path)) as own:
            barrier.wait()
            try:
                won.append(publish(own, plan, location, metadata).metadata_location)
            except ConflictError:
                lost.append(location)

    threads = [threading.Thread(target=run, args=part) for part in prepared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(lost) == len(prepared) - 1
    assert read_pointer(store, identifier) == won[0]


@pytest.mark.parametrize("replace", [False, True])
def test_metadata_that_pyiceberg_cannot_parse_is_published(store, source, replace):
    column = {"id": 9, "name": "shape", "required": False, "type": "geometry(OGC:CRS84)"}
    schemas = [{**schema, "fields": [*schema["fields"], column]} for schema in source["schemas"]]
    changes = {"format_version": 3, "schemas": schemas, "last_column_id": 9, "next_row_id": 9}
    location, metadata = prepare(store.catalog, source, **changes)
    identifier = OLD if replace else NEW
    plan = plan_publication(store, identifier, metadata, replace=replace)
    assert publish(store, plan, location, metadata).metadata_location == location
    assert read_pointer(store, identifier) == location


def test_metadata_of_format_version_1_is_published(store, source):
    old = {key: value for key, value in source.items() if key not in ("schemas", "partition-specs", "refs")}
    old |= {"schema": source["schemas"][0], "partition-spec": source["partition-specs"][0]["fields"]}
    location, metadata = prepare(store.catalog, old, format_version=1)
    publish(store, plan_publication(store, NEW, metadata, replace=False), location, metadata)
    assert offsets_in(store.load(NEW)) == list(range(9))


def test_metadata_of_another_table_is_not_published_over_one(store, source):
    location, metadata = renewed(store, source)
    plan = plan_publication(store, OLD, metadata, replace=True)
    with pytest.raises(UsageError, match="table-uuid"):
        publish(store, plan, location, metadata)


def test_there_must_be_a_table_to_replace(store, source):
    with pytest.raises(NotFoundError):
        plan_publication(store, NEW, source, replace=True)
    assert read_pointer(store, NEW) is None


def test_more_than_the_current_snapshot_is_refused_where_only_that_is_to_be_kept(store, source):
    with pytest.raises(UsageError, match="more than the current snapshot"):
        plan_publication(store, NEW, source, replace=False, current_only=True)
