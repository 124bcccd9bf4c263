"""A table is its own checkpoint: its position goes with its rows, survives expiry, and a rollback is noticed."""

from __future__ import annotations

import pickle

import pytest

from frazil.errors import ConflictError, IntegrityError, UsageError
from frazil.tables import (
    PositionMovedError,
    RolledBackError,
    accept_rollback,
    adopt,
    commit_append,
    find_highest_offsets,
    find_position,
    remove_files,
)
from frazil.tables.position import collect_carried_positions
from tests.tables import (
    TOPIC,
    append,
    append_until,
    at,
    embedded,
    end_of,
    make_table,
    offsets_in,
    open_store,
    reached,
    rows,
    write,
)

NAME = "topics.clicks"


@pytest.fixture
def store(tmp_path):
    with open_store(embedded(tmp_path / "home")) as opened:
        yield opened


@pytest.fixture
def table(store):
    return make_table(store, NAME)


def expire_all_but_current(store):
    table = store.load(NAME)
    current = table.current_snapshot().snapshot_id
    old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != current]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    return store.load(NAME)


def roll_back(store, snapshot_id):
    table = store.load(NAME)
    table.manage_snapshots().set_current_snapshot(snapshot_id=snapshot_id).commit()
    return store.load(NAME)


def test_a_new_table_has_no_position(table):
    assert reached(table) is None
    assert find_highest_offsets(table, TOPIC) == {}


def test_each_sink_and_topic_has_its_own_position(store, table):
    table = append(store, table, 5).table
    other = at(7, sink="dead_letters")
    table = commit_append(store, table, [], expected=None, reached=other).table
    third = at(3, topic="views")
    table = commit_append(store, table, [], expected=None, reached=third).table
    assert end_of(reached(table)) == 5
    assert find_position(table, "dead_letters", TOPIC) == other
    assert find_position(table, "archive", "views") == third
    assert find_highest_offsets(table, TOPIC) == {0: 7}
    assert find_highest_offsets(table, "views") == {0: 3}


def test_a_position_has_a_place_for_each_partition(store, table):
    goal = at(0)
    goal = type(goal)(goal.sink, goal.topic, {0: 5, 3: 8}, goal.log_id, 2, goal.batch_id)
    table = commit_append(store, table, [], expected=None, reached=goal).table
    found = reached(table)
    assert found.offsets == {0: 5, 3: 8}
    assert (found.log_id, found.epoch, found.batch_id) == (goal.log_id, 2, goal.batch_id)


def test_snapshots_of_others_do_not_hide_the_position(store, table):
    table = append(store, table, 5).table
    table.append(rows(1_000_000, 1_000_003))
    table.overwrite(table.scan().to_arrow())
    assert end_of(reached(store.load(NAME))) == 5


def test_expiry_of_all_that_carried_it_leaves_the_property(store, table):
    table = append(store, table, 5).table
    table.append(rows(1_000_000, 1_000_003))
    table = expire_all_but_current(store)
    assert end_of(reached(table)) == 5
    assert find_highest_offsets(table, TOPIC) == {0: 5}
    table = append_until(store, table, 20)[0]
    assert [o for o in offsets_in(table) if o < 1_000_000] == list(range(20))


def test_a_property_that_is_older_than_the_snapshots_is_not_believed(store, table):
    table = append(store, table, 5).table
    old = dict(table.properties)
    table = append(store, table, 5).table
    table.transaction().set_properties(**{k: v for k, v in old.items() if "position" in k}).commit_transaction()
    assert end_of(reached(store.load(NAME))) == 10


def test_a_property_that_was_removed_is_not_missed(store, table):
    table = append(store, table, 5).table
    key = reached(table).key
    table.transaction().remove_properties(key).commit_transaction()
    assert end_of(reached(store.load(NAME))) == 5


def test_a_property_that_is_no_position_is_an_error(store, table):
    table = append(store, table, 5).table
    table.transaction().set_properties(**{reached(table).key: "soon"}).commit_transaction()
    with pytest.raises(IntegrityError, match="does not contain a position"):
        reached(store.load(NAME))


def test_a_rollback_is_noticed_and_both_positions_are_named(store, table):
    first = append(store, table, 5)
    append(store, first.table, 5)
    table = roll_back(store, first.snapshot_id)
    with pytest.raises(RolledBackError) as stop:
        reached(table)
    assert "0:5" in stop.value.message
    assert "0:10" in stop.value.message
    assert "frazil topic adopt clicks --rewind" in stop.value.hint
    assert "--keep" in stop.value.hint
    assert not stop.value.retryable
    assert (end_of(stop.value.table_position), end_of(stop.value.recorded)) == (5, 10)
    assert isinstance(pickle.loads(pickle.dumps(stop.value)), RolledBackError)


def test_a_rollback_is_noticed_under_later_commits_of_others(store, table):
    first = append(store, table, 5)
    append(store, first.table, 5)
    roll_back(store, first.snapshot_id).append(rows(1_000_000, 1_000_003))
    with pytest.raises(RolledBackError):
        reached(store.load(NAME))


def test_a_rollback_is_noticed_although_what_was_rolled_back_is_expired(store, table):
    first = append(store, table, 5)
    append(store, first.table, 5)
    roll_back(store, first.snapshot_id)
    with pytest.raises(RolledBackError):
        reached(expire_all_but_current(store))


def test_a_rollback_to_before_the_first_position_is_noticed(store, table):
    table.append(rows(1_000_000, 1_000_003))
    table = store.load(NAME)
    before = table.current_snapshot().snapshot_id
    append(store, table, 5)
    with pytest.raises(RolledBackError, match="reach nothing"):
        reached(roll_back(store, before))


def test_a_rollback_between_check_and_commit_stops_the_commit(store, table):
    first = append(store, table, 5)
    second = append(store, first.table, 5)
    roll_back(store, first.snapshot_id)
    with pytest.raises(RolledBackError):
        append(store, second.table, 5)
    assert offsets_in(store.load(NAME)) == list(range(5))


def test_a_rewind_writes_the_rows_again(store, table):
    first = append(store, table, 5)
    append(store, first.table, 5)
    table = accept_rollback(store, roll_back(store, first.snapshot_id), "archive", TOPIC, keep=False)
    assert end_of(reached(table)) == 5
    assert find_highest_offsets(table, TOPIC) == {0: 10}, "offsets that were ever given out stay taken"
    assert offsets_in(append_until(store, table, 12)[0]) == list(range(12))


def test_a_rewind_to_before_the_first_position_begins_anew(store, table):
    table.append(rows(1_000_000, 1_000_003))
    table = store.load(NAME)
    before = table.current_snapshot().snapshot_id
    append(store, table, 5)
    table = accept_rollback(store, roll_back(store, before), "archive", TOPIC, keep=False)
    assert reached(table) is None
    assert [o for o in offsets_in(append_until(store, table, 6)[0]) if o < 1_000_000] == list(range(6))


def test_keeping_leaves_the_rows_out(store, table):
    first = append(store, table, 5)
    append(store, first.table, 5)
    table = accept_rollback(store, roll_back(store, first.snapshot_id), "archive", TOPIC, keep=True)
    assert end_of(reached(table)) == 10
    assert offsets_in(append_until(store, table, 12)[0]) == [*range(5), 10, 11]


def test_a_second_rollback_is_noticed_too(store, table):
    first = append(store, table, 5)
    append(store, first.table, 5)
    table = accept_rollback(store, roll_back(store, first.snapshot_id), "archive", TOPIC, keep=False)
    append(store, table, 5)
    with pytest.raises(RolledBackError):
        reached(roll_back(store, first.snapshot_id))


def test_accepting_where_nothing_was_rolled_back_does_nothing(store, table):
    table = append(store, table, 5).table
    assert accept_rollback(store, table, "archive", TOPIC, keep=False) is table


def test_another_log_is_adopted(store, table):
    table = append(store, table, 5).table
    goal = at(5, log_id="log-2", epoch=9)
    table = adopt(store, table, goal)
    assert reached(table) == goal
    assert offsets_in(table) == list(range(5))
    with pytest.raises(UsageError):
        append(store, table, 5)  # it still writes for log-1
    commit_append(store, table, write(table, 5, 8), expected=goal, reached=at(8, log_id="log-2", epoch=9))
    assert offsets_in(store.load(NAME)) == list(range(8))


def test_a_batch_planned_before_an_adoption_does_not_land_after_it(store, table):
    stale = append(store, table, 5).table
    adopt(store, stale, at(5, log_id="log-2"))
    with pytest.raises(PositionMovedError):
        append(store, stale, 5)
    assert offsets_in(store.load(NAME)) == list(range(5))


def test_an_adoption_on_a_table_that_has_changed_is_refused(store, table):
    stale = append(store, table, 5).table
    append(store, stale, 5)
    with pytest.raises(ConflictError):
        adopt(store, stale, at(5, log_id="log-2"))
    assert end_of(reached(store.load(NAME))) == 10


def test_an_adopted_position_survives_expiry_and_retention(store, table):
    table = append(store, table, 5).table
    table = adopt(store, table, at(50))
    table = remove_files(store, table, lambda _: True).table
    table = expire_all_but_current(store)
    assert end_of(reached(table)) == 50
    assert offsets_in(table) == []


def test_a_sink_has_a_name_without_dots(table):
    with pytest.raises(UsageError):
        find_position(table, "a.b", TOPIC)


# What upkeep carries: a hint for the case that all else is lost.


def carry(store, table):
    """A snapshot of upkeep: it moves no position, and says which there are."""
    table.append(rows(0, 0), snapshot_properties=collect_carried_positions(table.metadata))
    return store.load(NAME)


def forget_property(store):
    table = store.load(NAME)
    table.transaction().remove_properties(f"frazil.position.archive.{TOPIC}").commit_transaction()
    return store.load(NAME)


def test_a_carried_position_counts_where_nothing_else_is_left(store, table):
    table = carry(store, append(store, table, 5).table)
    assert reached(table).anchor != table.current_snapshot().snapshot_id
    expire_all_but_current(store)
    table = forget_property(store)
    assert end_of(reached(table)) == 5
    assert find_highest_offsets(table, TOPIC) == {0: 5}
    table = append_until(store, table, 12)[0]
    assert end_of(reached(table)) == 12


def test_an_older_carried_position_in_a_newer_snapshot_does_not_count(store, table):
    old = append(store, table, 5).table
    stale = collect_carried_positions(old.metadata)
    table = append(store, old, 5).table
    table.append(rows(0, 0), snapshot_properties=stale)
    assert end_of(reached(store.load(NAME))) == 10
    assert end_of(reached(forget_property(store))) == 10
    table = store.load(NAME)
    assert end_of(reached(carry(store, table))) == 10
    expire_all_but_current(store)
    assert end_of(reached(store.load(NAME))) == 10, "of several that are carried, the furthest counts"


def test_after_a_rollback_the_rows_reach_what_was_carried(store, table):
    table = carry(store, append(store, table, 5).table)
    kept = table.current_snapshot().snapshot_id
    expire_all_but_current(store)
    append(store, store.load(NAME), 5)
    table = roll_back(store, kept)
    with pytest.raises(RolledBackError) as found:
        reached(table)
    assert end_of(found.value.table_position) == 5
    table = accept_rollback(store, table, "archive", TOPIC, keep=False)
    assert end_of(reached(table)) == 5
    assert offsets_in(append_until(store, table, 12)[0]) == list(range(12))


def test_all_positions_are_carried_and_what_is_no_position_is_not(store, table):
    table = append(store, table, 5).table
    table = commit_append(store, table, [], expected=None, reached=at(3, topic="views.by.day")).table
    table.transaction().set_properties(**{"frazil.position.nothing": "x"}).commit_transaction()
    assert set(collect_carried_positions(store.load(NAME).metadata)) == {
        f"frazil.carried.archive.{TOPIC}",
        "frazil.carried.archive.views.by.day",
    }
