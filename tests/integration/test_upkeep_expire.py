"""Expiry through Iceberg for Java: what goes, what stays, and what happens to those who look on or strike meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from frazil.catalogs import local_path
from frazil.errors import NotFoundError, UsageError
from frazil.tables.metadata.locations import canonical_uri
from frazil.tables.metadata.reachable import find_reachable_files
from frazil.upkeep.expiry import expire, reclaim
from frazil.upkeep.expiry.expire import choose
from frazil.upkeep.expiry.expired_file_lists import waiting
from frazil.upkeep.expiry.pins import PinLostError, pin, pinned, pins, release, renew
from frazil.upkeep.expiry.shared_locations import SharedLocationError
from frazil.upkeep.expiry.verify import verify
from tests.lane import people
from tests.rewrite_kit import Bench, striking
from tests.sink_kit import until
from tests.upkeep_files import Crash, step

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def bench(lane_settings, spark) -> Bench:
    return Bench(lane_settings, "sql", spark)


def old(bench: Bench, name: str, most: int = 1) -> list[int]:
    metadata = bench.load(name).metadata
    return choose(metadata, max_age_s=None, max_snapshots=most, now_ms=int(time.time() * 1000))


def expired(bench: Bench, name: str, ids: list[int] | None = None):
    ids = old(bench, name) if ids is None else ids
    return expire.run(bench.care, bench.load(name), step("expire", snapshots=ids))


def reclaimed(bench: Bench, name: str, grace_s: float = 0.0):
    return reclaim.run(bench.care, bench.load(name), step("reclaim", grace_s=grace_s))


def listed(bench: Bench, name: str):
    table = bench.load(name)
    return waiting(bench.care.storage_of(table), table)


def snapshots(bench: Bench, name: str) -> list[int]:
    return [s.snapshot_id for s in bench.load(name).metadata.snapshots]


def sound(bench: Bench, name: str) -> None:
    verdict = verify(bench.care, bench.load(name))
    assert verdict.sound, verdict.findings


def tidy(bench: Bench, name: str) -> None:
    """All files there are of use: metadata that Iceberg keeps for itself aside."""
    table = bench.load(name)
    folder = Path(local_path(table.location()) or "/nowhere")
    needed = set(find_reachable_files(bench.care.store, table))
    there = {canonical_uri(str(p)) for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")}
    assert there == needed
    crcs = {p.name[1:-4] for p in folder.rglob(".*.crc")}
    assert crcs <= {uri.rpartition("/")[2] for uri in needed}


def rewrite(bench: Bench, name: str) -> None:
    options = "map('rewrite-all', 'true')"
    bench.sql(f"CALL {bench.catalog}.system.rewrite_data_files(table => '{name}', options => {options})")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_old_snapshots_go_their_files_follow_and_every_row_stays(bench, version):
    modes = {"write__delete__mode": "merge-on-read"} if version > 1 else {}
    name = bench.table(version=version, **modes)
    bench.insert(name, 0, 10, 20)
    bench.sql(f"DELETE FROM {name} WHERE id IN (3, 14)")
    bench.sql(f"DELETE FROM {name} WHERE id = 5")
    bench.sql(
        f"CALL {bench.catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
    )
    rows = bench.ids(name)
    assert len(rows) == 27
    ids = old(bench, name)
    assert len(ids) == len(snapshots(bench, name)) - 1 >= 5
    outcome = expired(bench, name)
    assert (outcome.result, outcome.snapshots_removed, outcome.files_removed) == ("done", len(ids), 0)
    assert len(snapshots(bench, name)) == 1
    sound(bench, name)
    (waits,) = listed(bench, name)
    assert waits.committed
    kinds = {file.kind for file in waits.files}
    assert kinds >= {"data", "manifest", "manifest list"} | ({"deletes"} if version > 1 else set())
    assert reclaimed(bench, name, 3600).result == "nothing"
    outcome = reclaimed(bench, name)
    assert (outcome.files_removed, outcome.bytes_reclaimed) == (len(waits.files), waits.size)
    assert bench.ids(name) == rows
    sound(bench, name)
    tidy(bench, name)


def test_snapshots_whose_files_another_table_holds_stay(bench):
    name, other = bench.table(), bench.table()
    bench.insert(name, 0, 10)
    bench.load(other).add_files([task.file.file_path for task in bench.load(name).scan().plan_files()])
    rewrite(bench, name)
    before = snapshots(bench, name)
    with pytest.raises(SharedLocationError) as error:
        expired(bench, name)
    assert error.value.exit_code == 12
    assert bench.load(other).name()[-1] in error.value.message
    assert snapshots(bench, name) == before
    assert listed(bench, name) == []
    assert len(bench.ids(other)) == 20


def test_nothing_beyond_what_was_asked_for_goes(bench):
    """The table's own properties say that all old ones may: that is for the policy to judge."""
    name = bench.table(history__expire__max_snapshot_age_ms="1", history__expire__min_snapshots_to_keep="1")
    bench.insert(name, 0, 10, 20, 30)
    first, *rest = snapshots(bench, name)
    assert expired(bench, name, [first]).snapshots_removed == 1
    assert snapshots(bench, name) == rest


def test_of_a_branch_only_what_is_beyond_its_time_goes(bench):
    name = bench.table()
    bench.insert(name, 0, 10)
    bench.sql(f"ALTER TABLE {name} CREATE BRANCH b WITH SNAPSHOT RETENTION 2 SNAPSHOTS")
    for i in (100, 101):
        bench.sql(f"INSERT INTO {name}.branch_b VALUES ({i}, 'x')")
    bench.sql(f"DELETE FROM {name}.branch_b WHERE id = 100")
    bench.insert(name, 20)
    assert old(bench, name) == [], "all but the tips are in the history of the branch, and it names no age"
    later = int(time.time() * 1000) + 1000
    ids = choose(bench.load(name).metadata, max_age_s=0, max_snapshots=None, now_ms=later)
    assert expired(bench, name, ids).snapshots_removed == len(ids) == 3
    reclaimed(bench, name)
    sound(bench, name)
    tidy(bench, name)
    assert len(bench.sql(f"SELECT * FROM {name}.branch_b")) == 21
    assert len(bench.ids(name)) == 30


def test_what_a_branch_says_of_its_own_age_is_enforced_and_listed(bench):
    """Iceberg takes that along with every expiry, whether or not it was asked for."""
    name = bench.table()
    bench.insert(name, 0, 10)
    for i in (200, 201, 202):
        bench.sql(f"INSERT INTO {name} VALUES ({i}, 'x')")
    bench.sql(f"ALTER TABLE {name} CREATE BRANCH b")
    for i in (300, 301, 302):
        bench.sql(f"INSERT INTO {name}.branch_b VALUES ({i}, 'x')")
    manage = bench.care.spark()._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        bench.spark._jsparkSession, name
    )
    manage.manageSnapshots().setMaxSnapshotAgeMs("b", 1).setMinSnapshotsToKeep("b", 1).commit()
    first = snapshots(bench, name)[0]
    outcome = expired(bench, name, [first])
    assert outcome.snapshots_removed == 3, "the first, and two of the branch"
    (waits,) = listed(bench, name)
    assert len(waits.snapshots) == 3
    reclaimed(bench, name)
    sound(bench, name)
    tidy(bench, name)


def test_statistics_go_with_their_snapshot(bench):
    name = bench.table()
    bench.insert(name, 0)
    bench.sql(f"CALL {bench.catalog}.system.compute_table_stats(table => '{name}')")
    bench.insert(name, 10)
    bench.sql(f"CALL {bench.catalog}.system.compute_table_stats(table => '{name}')")
    assert len(bench.load(name).metadata.statistics) == 2
    expired(bench, name)
    (waits,) = listed(bench, name)
    assert [file.kind for file in waits.files].count("statistics") == 1
    reclaimed(bench, name)
    sound(bench, name)
    tidy(bench, name)


def test_a_table_that_forbids_it_is_left_alone(bench):
    name = bench.table(gc__enabled="false")
    bench.insert(name, 0, 10)
    first = snapshots(bench, name)[0]
    outcome = expired(bench, name, [first])
    assert (outcome.result, "gc.enabled" in (outcome.reason or "")) == ("unsupported", True)
    assert len(snapshots(bench, name)) == 2


def test_a_second_name_of_the_table_stops_it_before_anything_changes(bench):
    name = bench.table()
    bench.insert(name, 0, 10)
    again = f"{bench.namespace}.again"
    bench.care.store.catalog.register_table(again, bench.load(name).metadata_location)
    try:
        with pytest.raises(SharedLocationError, match="again"):
            expired(bench, name)
        assert len(snapshots(bench, name)) == 2
        assert listed(bench, name) == []
    finally:
        bench.care.store.catalog.drop_table(again)


STEPS = [
    "upkeep.expire.list.before",
    "upkeep.expire.list.after",
    "upkeep.expire.commit.before",
    "upkeep.expire.commit.after",
    "upkeep.expire.committed.before",
    "upkeep.expire.committed.after",
]


@pytest.mark.deep
@pytest.mark.parametrize("at", STEPS)
def test_a_crash_at_any_step_hurts_nothing_and_later_runs_do_the_rest(bench, at):
    name = bench.table()
    bench.insert(name, 0, 10)
    bench.sql(f"DELETE FROM {name} WHERE id < 10")
    with pytest.raises(Crash), striking(at, lambda: (_ for _ in ()).throw(Crash(at))):
        expired(bench, name)
    sound(bench, name)
    assert bench.ids(name) == list(range(10, 20))
    assert (len(snapshots(bench, name)) == 1) == (STEPS.index(at) >= 3)
    for _ in range(3):
        expired(bench, name)
        reclaimed(bench, name)
        sound(bench, name)
    assert bench.ids(name) == list(range(10, 20))
    assert len(snapshots(bench, name)) == 1
    assert len(bench.on_disk(name)) == 1
    assert all(not waits.committed for waits in listed(bench, name)), "only one that may be under way is left"


def test_a_snapshot_that_gets_a_tag_at_the_last_moment_stays(bench):
    name = bench.table()
    bench.insert(name, 0, 10, 20)
    first, second, _ = snapshots(bench, name)
    tag = f"ALTER TABLE {name} CREATE TAG late AS OF VERSION {second}"
    with striking("upkeep.expire.commit.before", lambda: bench.sql(tag)):
        outcome = expired(bench, name)
    assert (outcome.result, outcome.conflicts) == ("conflict", 1)
    assert len(snapshots(bench, name)) == 3, "all or nothing"
    assert listed(bench, name) == []
    assert old(bench, name) == [first]
    assert expired(bench, name).snapshots_removed == 1
    reclaimed(bench, name)
    sound(bench, name)
    assert len(bench.sql(f"SELECT * FROM {name} VERSION AS OF 'late'")) == 20


def test_a_plan_that_is_out_of_date_leaves_out_what_is_held_or_gone(bench):
    name = bench.table()
    bench.insert(name, 0, 10, 20)
    first, second, third = snapshots(bench, name)
    bench.sql(f"ALTER TABLE {name} CREATE TAG t AS OF VERSION {first}")
    assert expired(bench, name, [first, second, third, 12345]).snapshots_removed == 1
    assert set(snapshots(bench, name)) == {first, third}
    assert expired(bench, name, [first, third]).result == "nothing"


def test_rows_that_others_commit_meanwhile_stay(bench):
    name = bench.table()
    bench.insert(name, 0, 10)
    strike = lambda: bench.load(name).append(people(500))  # noqa: E731
    with striking("upkeep.expire.commit.before", strike):
        outcome = expired(bench, name)
    assert (outcome.result, outcome.snapshots_removed) == ("done", 1)
    reclaimed(bench, name)
    assert bench.ids(name) == [*range(20), 500]
    sound(bench, name)


def test_a_rollback_meanwhile_wins(bench):
    name = bench.table()
    bench.insert(name, 0, 10, 20)
    second = snapshots(bench, name)[1]
    back = f"CALL {bench.catalog}.system.rollback_to_snapshot('{name.split('.', 1)[1]}', {second})"
    with striking("upkeep.expire.commit.before", lambda: bench.sql(back)):
        assert expired(bench, name).result == "conflict"
    assert bench.ids(name) == list(range(20))
    sound(bench, name)


def test_two_at_once_do_each_other_no_harm(bench):
    name = bench.table()
    bench.insert(name, 0, 10, 20)
    ids = old(bench, name)
    with striking("upkeep.expire.commit.before", lambda: expired(bench, name, ids)):
        assert expired(bench, name, ids).result == "done"
    assert len(snapshots(bench, name)) == 1
    reclaimed(bench, name)
    assert listed(bench, name) == []
    sound(bench, name)
    assert bench.ids(name) == list(range(30))


def test_a_reader_that_planned_before_reads_on_while_snapshots_go(bench):
    from pyiceberg.io.pyarrow import ArrowScan

    name = bench.table()
    bench.insert(name, 0, 10)
    table = bench.load(name)
    tasks = list(table.scan().plan_files())
    bench.sql(
        f"CALL {bench.catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"
    )
    assert expired(bench, name).result == "done"
    reclaimed(bench, name, 3600)
    scan = ArrowScan(table.metadata, table.io, table.schema(), table.scan().row_filter)
    assert sorted(scan.to_table(tasks)["id"].to_pylist()) == list(range(20))
    reclaimed(bench, name)
    assert bench.ids(name) == list(range(20))


# Pins.


def test_the_pin_of_somebody_who_died_is_not_in_the_way_once_its_lease_is_over(bench):
    name = bench.table()
    bench.insert(name, 0, 10)
    pin(bench.care, bench.load(name), "test", 0.5)
    bench.insert(name, 20)
    time.sleep(0.6)
    ids = old(bench, name)
    assert len(ids) == 2
    assert set(expire.plan(bench.care, bench.load(name), ids).snapshots) == set(ids)
    assert expired(bench, name).snapshots_removed == 2
    assert pins(bench.load(name)) == []
    assert len(snapshots(bench, name)) == 1
    reclaimed(bench, name)
    sound(bench, name)
    assert bench.ids(name) == list(range(30))


def test_what_a_backup_holds_stays_and_goes_when_it_lets_go(bench):
    name = bench.table()
    bench.insert(name, 0, 10)
    with pinned(bench.care, bench.load(name), "backup", 600) as held:  # it is not renewed in this time
        bench.sql(f"DELETE FROM {name} WHERE id < 100")
        bench.insert(name, 20)
        ids = old(bench, name)
        assert held.pin.snapshot_id not in ids
        assert len(ids) == 1, "what came after a pin stays too, so that it remains in the history"
        expired(bench, name)
        reclaimed(bench, name)
        sound(bench, name)
        assert len(bench.sql(f"SELECT * FROM {name} VERSION AS OF '{held.pin.tag}'")) == 20
        (found,) = pins(bench.load(name))
        assert (found.tag, found.purpose) == (held.pin.tag, "backup")
        assert abs((found.until - held.pin.until).total_seconds()) < 1
        held.require()
    assert pins(bench.load(name)) == []
    assert len(old(bench, name)) == 2
    expired(bench, name)
    reclaimed(bench, name)
    sound(bench, name)
    tidy(bench, name)
    assert bench.ids(name) == list(range(20, 30))


def test_a_pin_holds_against_the_expiry_of_any_engine_until_its_lease_is_over(bench):
    name = bench.table()
    bench.insert(name, 0)
    time.sleep(1.1)
    held = pin(bench.care, bench.load(name), "backup", 600)
    bench.insert(name, 10, 20)
    all_there_are = "older_than => TIMESTAMP '2100-01-01 00:00:00'"
    call = f"CALL {bench.catalog}.system.expire_snapshots(table => '{name}', {all_there_are})"
    bench.sql(call)
    assert held.snapshot_id in snapshots(bench, name)
    renew(bench.care, held, 0.001)
    time.sleep(0.1)
    bench.sql(call)
    assert held.snapshot_id not in snapshots(bench, name)
    with pytest.raises(PinLostError):
        renew(bench.care, held, 30)
    release(bench.care, held)


def _drop_tag(bench, name: str, tag: str) -> None:
    """Drops a tag beside commits of others: Spark's statement does not retry a lost commit."""

    def is_dropped() -> bool:
        try:
            bench.sql(f"ALTER TABLE {name} DROP TAG `{tag}`")
        except Py4JJavaError as error:
            assert "CommitFailedException" in str(error)
            return False
        return True

    until(is_dropped)


def test_a_pin_is_renewed_as_long_as_the_work_takes(bench):
    name = bench.table()
    bench.insert(name, 0, 10)
    first = snapshots(bench, name)[0]
    with pinned(bench.care, bench.load(name), "backup", 1.5, first) as held:
        time.sleep(2.5)
        until(lambda: first not in old(bench, name))  # where a renewal came late, the next one holds it again
        _drop_tag(bench, name, held.pin.tag)
        time.sleep(1.0)
        with pytest.raises(PinLostError, match="not held any more"):
            held.require()


def test_what_cannot_be_pinned_is_told(bench):
    name = bench.table()
    with pytest.raises(NotFoundError, match="no snapshot"):
        pin(bench.care, bench.load(name), "backup", 30)
    bench.insert(name, 0)
    with pytest.raises(NotFoundError, match="no snapshot 5"):
        pin(bench.care, bench.load(name), "backup", 30, 5)
    for purpose, lease in (("Back up", 30), ("backup", 0)):
        with pytest.raises(UsageError):
            pin(bench.care, bench.load(name), purpose, lease)


def test_a_pin_outlives_the_commits_of_others(bench):
    name = bench.table()
    bench.insert(name, 0)
    with striking("upkeep.pin.before", lambda: bench.load(name).append(people(500))):
        held = pin(bench.care, bench.load(name), "backup", 30)
    assert held.tag in bench.load(name).metadata.refs
    release(bench.care, held)
    release(bench.care, held)
    assert bench.ids(name) == [*range(10), 500]
