"""What Frazil promises of commits, on every kind of catalog. One suite, real servers."""

from __future__ import annotations

import threading
import uuid

import pyarrow as pa
import pytest

from frazil.catalogs import open_catalog
from frazil.catalogs.kinds import ABILITIES
from frazil.settings import NetworkSettings
from frazil.tables import PositionMovedError, RolledBackError, TableStore, adopt, evolve_schema, remove_files
from tests.lane import Lane
from tests.tables import (
    Wrapped,
    append,
    append_until,
    applied_but_lost,
    at,
    end_of,
    lost_on_the_way,
    make_table,
    offsets_in,
    reached,
    rows,
)
from tests.tiers import ALL_KINDS, kinds

pytestmark = pytest.mark.timeout(600)
FOREIGN = 1_000_000
# moto, which stands in for Glue here, ignores versions.
CHECKED = kinds("glue")


@pytest.fixture(scope="module", params=kinds())
def kind(request) -> str:
    return request.param


@pytest.fixture
def abilities(kind):
    return ABILITIES["rest" if kind == "rest_on_s3" else kind]


def open_store(lane_settings, kind: str) -> TableStore:
    settings = lane_settings.catalog(kind)
    return TableStore(open_catalog(settings, lane_settings.model.network), settings, lane_settings.model.network)


@pytest.fixture
def store(lane_settings, kind):
    with open_store(lane_settings, kind) as opened:
        yield opened


@pytest.fixture(scope="module")
def namespace() -> str:
    return f"t_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def name(namespace) -> str:
    return f"{namespace}.c_{uuid.uuid4().hex[:8]}"


def shaky(store: TableStore, *commits) -> TableStore:
    patient = NetworkSettings(retry_attempts=3, breaker_failures=100)
    return TableStore(Wrapped(store.catalog, commits), store.settings, patient)


def own_offsets(table) -> list[int]:
    return [o for o in offsets_in(table) if o < FOREIGN]


def test_a_table_is_made_once_by_all_who_ask_at_once(lane_settings, kind, namespace, name):
    with open_store(lane_settings, kind) as first:
        # Hive's metastore removes the folder of a database that two make at once, with all that is in it.
        make_table(first, f"{namespace}.other")
    found, errors = [], []
    start = threading.Barrier(3)

    def make() -> None:
        with open_store(lane_settings, kind) as mine:
            try:
                start.wait(60)
                found.append(make_table(mine, name).metadata.table_uuid)
            except Exception as error:  # noqa: BLE001 - any is a failure of the test
                errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    if kind != "glue":  # moto lets the second one overwrite the first
        assert len(set(found)) == 1


@pytest.mark.parametrize("kind", ALL_KINDS, indirect=True)
def test_rows_and_position_land_together_and_old_snapshots_go(store, name, abilities):
    table = make_table(store, name)
    for _ in range(12):
        table = append(store, table, 3, keep_snapshots=4).table
    table = store.load(name)
    assert offsets_in(table) == list(range(36))
    assert end_of(reached(table)) == 36
    assert len(table.metadata.snapshots) == (4 if abilities.history else 1)
    assert len(table.current_snapshot().manifests(table.io)) <= 8


@pytest.mark.parametrize("kind", kinds("glue", "hive"), indirect=True)
def test_writers_with_the_same_offsets_write_each_once(lane_settings, kind, store, name):
    make_table(store, name)
    won, errors = [], []

    def run() -> None:
        with open_store(lane_settings, kind) as mine:
            try:
                won.append(append_until(mine, mine.load(name), 12, 3)[1])
            except Exception as error:  # noqa: BLE001 - any is a failure of the test
                errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert errors == []
    assert sum(won) == 4
    assert offsets_in(store.load(name)) == list(range(12))


@pytest.mark.parametrize("kind", CHECKED, indirect=True)
def test_a_commit_of_somebody_else_is_built_upon(store, kind, name):
    table = append(store, make_table(store, name), 5).table
    store.load(name).append(rows(FOREIGN, FOREIGN + 2))
    table = append(store, table, 4).table
    stale = table
    if kind != "nessie":  # which refuses the schemas that PyIceberg sends it
        evolve_schema(store, table, pa.schema([("note", pa.string())]))
    table = append(store, stale, 4).table
    stale = table
    now = store.load(name)
    now.overwrite(now.scan().to_arrow())
    table = append(store, stale, 4).table
    assert own_offsets(store.load(name)) == list(range(17))
    assert end_of(reached(store.load(name))) == 17


@pytest.mark.parametrize("kind", CHECKED, indirect=True)
def test_the_slower_writer_is_told_where_to_go_on(store, name):
    stale = make_table(store, name)
    append(store, stale, 5)
    with pytest.raises(PositionMovedError) as moved:
        append(store, stale, 3)
    assert end_of(moved.value.position) == 5
    assert offsets_in(store.load(name)) == list(range(5))


def test_a_lost_reply_is_found_and_a_lost_request_is_sent_again(store, name):
    table = make_table(store, name)
    found = append(shaky(store, applied_but_lost), table, 5)
    again = append(shaky(store, lost_on_the_way), found.table, 5)
    assert (found.found, again.found) == (True, False)
    assert offsets_in(store.load(name)) == list(range(10))


@pytest.mark.parametrize("kind", CHECKED, indirect=True)
def test_a_request_that_lands_late_is_not_doubled(store, name):
    late = []

    def delayed(real, *args):
        late.append(args)
        raise TimeoutError("no answer in time")

    def overtaken(real, *args):
        real(*late[0])
        return real(*args)

    table = append(store, make_table(store, name), 5).table
    assert append(shaky(store, delayed, overtaken), table, 5).found
    assert offsets_in(store.load(name)) == list(range(10))


def test_the_position_outlives_all_snapshots_that_carried_it(store, name, abilities):
    append(store, make_table(store, name), 5)
    store.load(name).append(rows(FOREIGN, FOREIGN + 2))
    table = store.load(name)
    old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != table.current_snapshot().snapshot_id]
    assert bool(old) == abilities.history
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
    table = append_until(store, store.load(name), 10)[0]
    assert own_offsets(table) == list(range(10))


def test_a_rollback_is_noticed(store, name, abilities):
    first = append(store, make_table(store, name), 5)
    append(store, first.table, 5)
    if not abilities.history:
        return
    table = store.load(name)
    table.manage_snapshots().set_current_snapshot(snapshot_id=first.snapshot_id).commit()
    with pytest.raises(RolledBackError):
        reached(store.load(name))


def test_positions_are_adopted_and_files_removed(store, name):
    table = append_until(store, make_table(store, name), 10, 5)[0]
    table = adopt(store, table, at(20, log_id="log-2"))
    assert end_of(reached(table)) == 20
    removed = remove_files(store, table, lambda file: int.from_bytes(file.lower_bounds[1], "little") == 0)
    assert removed.files == 1
    assert offsets_in(store.load(name)) == list(range(5, 10))
    assert end_of(reached(store.load(name))) == 20


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["sql"], indirect=True)
def test_spark_reads_our_manifests_and_we_go_on_after_its_maintenance(lane_settings, spark, kind, store, name):
    lane = Lane(kind, lane_settings, spark)
    table = make_table(store, name)
    for _ in range(80):
        table = append(store, table, 3, keep_snapshots=5).table
    full = f"{kind}.{name}"

    def counted() -> tuple:
        return lane.sql(f"SELECT count(*), count(DISTINCT `offset`), max(`offset`) FROM {full}")[0]

    assert counted() == (240, 240, 239)
    files = lane.sql(f"SELECT count(*) FROM {full}.files")[0][0]
    assert files == 80 + 1, "one file for each commit, and one more where a commit went over midnight"
    assert lane.sql(f"SELECT sum(added_data_files_count + existing_data_files_count) FROM {full}.manifests") == [
        (files,)
    ]
    lane.sql(f"DELETE FROM {full} WHERE `offset` < 10")
    lane.sql(f"CALL {kind}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    table = append_until(store, store.load(name), 270)[0]
    assert offsets_in(table) == list(range(10, 270))
    expire = "older_than => TIMESTAMP '2100-01-01', retain_last => 1"
    lane.sql(f"CALL {kind}.system.expire_snapshots(table => '{name}', {expire})")
    lane.sql(f"CALL {kind}.system.rewrite_manifests('{name}')")
    table = append_until(store, store.load(name), 300)[0]
    assert offsets_in(table) == list(range(10, 300))
    assert counted() == (290, 290, 299)
