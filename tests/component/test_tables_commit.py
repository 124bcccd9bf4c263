"""Rows get into a table exactly once, whatever happens between the check and the commit."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.expressions import LessThan
from pyiceberg.types import StringType

from frazil.errors import ConflictError, UnavailableError, UnsupportedError, UsageError
from frazil.observe.faultpoints import handled
from frazil.settings import NetworkSettings
from frazil.tables import (
    CommitUnknownError,
    PositionMovedError,
    TableStore,
    commit_append,
    evolve_schema,
    list_data_files,
    remove_files,
)
from tests.tables import (
    Wrapped,
    append,
    append_until,
    applied_but_lost,
    at,
    data_paths,
    embedded,
    end_of,
    lost_on_the_way,
    make_table,
    offsets_in,
    open_store,
    reached,
    rows,
    write,
)

NAME = "topics.clicks"


@pytest.fixture
def settings(tmp_path):
    return embedded(tmp_path / "home")


@pytest.fixture
def store(settings):
    with open_store(settings) as opened:
        yield opened


@pytest.fixture
def table(store):
    return make_table(store, NAME)


def with_catalog(store: TableStore, *commits) -> TableStore:
    patient = NetworkSettings(retry_attempts=3, retry_timeout=60, breaker_failures=100)
    return TableStore(Wrapped(store.catalog, commits), store.settings, patient)


def test_rows_and_position_land_together(store, table):
    commit = append(store, table, 5)
    loaded = store.load(NAME)
    assert offsets_in(loaded) == list(range(5))
    assert reached(loaded) == reached(commit.table) == commit.position
    assert loaded.current_snapshot().snapshot_id == commit.snapshot_id
    assert (commit.tries, commit.found) == (1, False)


def test_a_batch_without_rows_moves_the_position_on(store, table):
    table = append(store, table, 5).table
    files_before = data_paths(table)
    commit = commit_append(store, table, [], expected=reached(table), reached=at(9))
    assert end_of(reached(store.load(NAME))) == 9
    assert offsets_in(commit.table) == list(range(5))
    assert data_paths(table) == files_before


def test_a_position_never_goes_back_nor_changes_its_log(store, table):
    table = append(store, table, 5).table
    for wrong in (at(4), at(6, log_id="log-2"), at(6, batch_id=reached(table).batch_id), at(6, topic="other")):
        with pytest.raises(UsageError):
            commit_append(store, table, [], expected=reached(table), reached=wrong)


def test_the_slower_of_two_writers_loses_and_its_files_are_deleted(store, table):
    files = write(table, 0, 3)
    winner = append(store, table, 5)
    with pytest.raises(PositionMovedError) as lost:
        commit_append(store, table, files, expected=None, reached=at(3))
    assert lost.value.position == winner.position
    assert offsets_in(lost.value.table) == list(range(5))
    assert len(data_paths(table)) == 1, "the loser's file stayed"
    assert metadata_files(table, "m0.avro") == 1, "the loser's manifest stayed"


def metadata_files(table, suffix: str) -> int:
    return len(list((Path(table.location().removeprefix("file://")) / "metadata").glob(f"*{suffix}")))


def test_threads_with_the_same_offsets_write_each_once(settings, store, table):
    stores = [open_store(settings) for _ in range(4)]
    won = []
    threads = [threading.Thread(target=lambda s=s: won.append(append_until(s, s.load(NAME), 60, 3)[1])) for s in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sum(won) == 20
    assert offsets_in(store.load(NAME)) == list(range(60))


def test_processes_with_the_same_offsets_write_each_once(tmp_path, store, table):
    command = [sys.executable, "-m", "tests.tables", str(tmp_path / "home"), NAME, "90", "3"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    won = 0
    for process in started:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-2000:]
        won += int(out)
    assert won == 30
    table = store.load(NAME)
    assert offsets_in(table) == list(range(90))
    assert len(data_paths(table)) == 30, "losers left files behind"


def foreign_append(table):
    table.append(rows(1_000_000, 1_000_002))


def foreign_overwrite(table):
    """As a compaction: other files, the same rows."""
    table.overwrite(table.scan().to_arrow())


def foreign_property(table):
    table.transaction().set_properties(owner="somebody").commit_transaction()


def foreign_column(table):
    with table.update_schema() as update:
        update.add_column("note", StringType())


def foreign_partition(table):
    with table.update_spec() as update:
        update.add_identity("payload")


def foreign_branch(table):
    """Nothing that ours requires has changed then, and yet its sequence number is taken."""
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "others").commit()
    table.append(rows(1_000_000, 1_000_002), branch="others")


@pytest.mark.parametrize(
    "interfere",
    [foreign_append, foreign_overwrite, foreign_property, foreign_column, foreign_partition, foreign_branch],
)
def test_a_commit_of_somebody_else_between_check_and_commit_is_built_upon(store, table, interfere):
    table = append(store, table, 5).table
    interfere(store.load(NAME))
    commit = append(store, table, 4)
    after = store.load(NAME)
    assert [o for o in offsets_in(after) if o < 1_000_000] == list(range(9))
    assert end_of(reached(after)) == 9
    assert commit.tries == (1 if interfere is foreign_property else 2)
    after = append_until(store, after, 40)[0]
    assert [o for o in offsets_in(after) if o < 1_000_000] == list(range(40))
    if interfere is foreign_append:
        assert 1_000_001 in offsets_in(after)


def test_too_many_commits_of_others_end_the_tries_and_leave_the_files(store, table):
    table = append(store, table, 5).table
    files = write(table, 5, 8)

    def interfere(real, given, requirements, updates):
        foreign_append(store.load(NAME))
        return real(given, requirements, updates)

    harried = with_catalog(store, *[interfere] * 3)
    with pytest.raises(ConflictError, match="another writer committed first"):
        commit_append(harried, table, files, expected=reached(table), reached=at(8), tries=3)
    assert {f.file_path.removeprefix("file://") for f in files} <= data_paths(table)
    commit_append(store, table, files, expected=reached(table), reached=at(8))
    assert [o for o in offsets_in(store.load(NAME)) if o < 1_000_000] == list(range(8))


def test_a_lost_reply_is_looked_up_before_anything_is_retried(store, table):
    shaky = with_catalog(store, applied_but_lost)
    commit = append(shaky, table, 5)
    assert commit.found
    assert shaky.catalog.calls == 1, "it was sent again"
    assert offsets_in(store.load(NAME)) == list(range(5))


def test_an_unknown_state_of_the_server_counts_as_a_lost_reply(store, table):
    def unknown(real, *args):
        real(*args)
        raise CommitStateUnknownException("502")

    assert append(with_catalog(store, unknown), table, 5).found
    assert offsets_in(store.load(NAME)) == list(range(5))


def test_a_lost_request_is_sent_again(store, table):
    shaky = with_catalog(store, lost_on_the_way)
    commit = append(shaky, table, 5)
    assert not commit.found
    assert shaky.catalog.calls == 2
    assert offsets_in(store.load(NAME)) == list(range(5))
    assert metadata_files(table, "m0.avro") == 1, "the manifest of the first attempt stayed"


def test_a_request_that_lands_late_is_found_and_not_doubled(store, table):
    """The first request is slow: it lands when the second one is on its way."""
    late = []

    def delayed(real, *args):
        late.append(args)
        raise TimeoutError("no answer in time")

    def overtaken_by_the_late_one(real, *args):
        real(*late[0])
        return real(*args)

    shaky = with_catalog(store, delayed, overtaken_by_the_late_one)
    commit = append(shaky, table, 5)
    assert commit.found
    assert offsets_in(store.load(NAME)) == list(range(5))
    assert offsets_in(append_until(store, store.load(NAME), 30)[0]) == list(range(30))


def test_a_late_request_cannot_land_after_its_successor(store, table):
    late = []

    def delayed(real, *args):
        late.append((real, args))
        raise TimeoutError("no answer in time")

    append(with_catalog(store, delayed), table, 5)
    real, args = late[0]
    with pytest.raises(Exception, match="branch main"):
        real(*args)
    assert offsets_in(store.load(NAME)) == list(range(5))


def test_what_landed_without_a_reply_is_found_although_others_have_built_upon_it(settings, store, table):
    """Its files must not be taken for those of a loser."""

    def applied_and_built_upon(real, *args):
        real(*args)
        append_until(store, store.load(NAME), 20)
        raise ConnectionError("the reply was lost")

    commit = append(with_catalog(store, applied_and_built_upon), table, 5)
    assert commit.found
    assert end_of(commit.position) == 5
    assert offsets_in(store.load(NAME)) == list(range(20))


def test_files_stay_when_the_history_no_longer_tells_whether_they_landed(store, table):
    table = append(store, table, 5).table
    files = write(table, 5, 8)
    mine = {f.file_path.removeprefix("file://") for f in files}

    def applied_and_forgotten(real, *args):
        real(*args)
        later = store.load(NAME)
        for _ in range(6):
            later = append(store, later, 3, keep_snapshots=2).table
        raise ConnectionError("the reply was lost")

    with pytest.raises(PositionMovedError):
        commit_append(with_catalog(store, applied_and_forgotten), table, files, expected=reached(table), reached=at(8))
    assert mine <= data_paths(table)
    assert offsets_in(store.load(NAME)) == list(range(26))


def test_without_any_answer_the_files_are_left_alone_and_the_same_call_completes(store, table):
    files = write(table, 0, 3)
    goal = at(3)
    deaf = with_catalog(store, *[lost_on_the_way] * 10)
    with pytest.raises(CommitUnknownError) as unknown:
        commit_append(deaf, table, files, expected=None, reached=goal)
    assert unknown.value.retryable
    assert isinstance(unknown.value, UnavailableError)
    assert len(data_paths(table)) == 1
    for _ in range(2):
        commit = commit_append(store, store.load(NAME), files, expected=None, reached=goal)
        assert offsets_in(commit.table) == [0, 1, 2]
    assert commit.found, "the second call found what the first had done"


def test_a_catalog_that_stays_away_leaves_an_unknown_state(store, table):
    files = write(table, 0, 3)

    class Gone(Wrapped):
        def load_table(self, name):
            raise ConnectionError("away")

    away = TableStore(
        Gone(store.catalog, [applied_but_lost]), store.settings, NetworkSettings(retry_attempts=1, breaker_failures=99)
    )
    with pytest.raises(CommitUnknownError):
        commit_append(away, table, files, expected=None, reached=at(3))
    assert offsets_in(store.load(NAME)) == [0, 1, 2]


def test_a_refusal_is_told_and_not_repeated(store, table):
    def refuse(real, *args):
        raise PermissionError("no")

    refusing = with_catalog(store, *[refuse] * 5)
    with pytest.raises(Exception, match="cannot write to"):
        append(refusing, table, 3)
    assert refusing.catalog.calls == 1
    assert len(data_paths(table)) == 1


def test_a_table_dropped_and_made_again_is_not_taken_for_the_old_one(store, table):
    table = append(store, table, 5).table
    store.catalog.drop_table(NAME)
    make_table(store, NAME)
    with pytest.raises(ConflictError, match="recreated"):
        append(store, table, 3)
    assert offsets_in(store.load(NAME)) == []


def test_format_versions_that_cannot_be_written_are_refused(store):
    store.catalog.create_namespace("old")
    for version in (1, 3):
        try:
            store.catalog.create_table(f"old.v{version}", rows(0, 1).schema, properties={"format-version": version})
        except NotImplementedError:
            continue
        with pytest.raises(UnsupportedError, match=f"version {version}"):
            make_table(store, f"old.v{version}")


def test_a_commit_refused_for_what_others_have_changed_is_built_anew(store, table):
    """As where a snapshot that we wanted to remove is gone: no conflict, but a refusal."""
    table = append(store, table, 5).table

    def changed_and_refused(real, *args):
        foreign_property(store.load(NAME))
        raise ValueError("Snapshot does not exist")

    assert append(with_catalog(store, changed_and_refused), table, 5).tries == 2
    assert offsets_in(store.load(NAME)) == list(range(10))


STEPS = [
    "tables.commit.manifests.before",
    "tables.commit.write.before",
    "tables.commit.write.after",
    "tables.commit.manifests.after",
    "tables.commit.list.after",
    "tables.commit.before",
    "tables.commit.after",
    "tables.commit.cleanup.before",
    "tables.commit.cleanup.after",
    "tables.commit.lookup.before",
    "tables.commit.lookup.after",
    "tables.discard.before",
    "tables.discard.after",
]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("trouble", ["none", "conflict", "lost reply", "lost race"])
def test_a_crash_at_any_step_loses_nothing_and_doubles_nothing(store, table, step, trouble):
    table = append_until(store, table, 30)[0]
    stale = table
    if trouble == "conflict":
        foreign_append(store.load(NAME))
    if trouble == "lost race":
        table = append(store, table, 3).table
    used = with_catalog(store, applied_but_lost) if trouble == "lost reply" else store
    used.discards._delay = 0.0

    def kill(reached_step: str) -> None:
        if reached_step == step and threading.current_thread() is threading.main_thread():
            raise Killed

    try:
        with handled(kill):
            append(used, stale, 3)
    except (Killed, PositionMovedError):
        pass
    after = store.load(NAME)
    done = end_of(reached(after))
    assert done in (30, 33)
    assert [o for o in offsets_in(after) if o < 1_000_000] == list(range(done))
    after = append_until(store, after, 60)[0]
    assert [o for o in offsets_in(after) if o < 1_000_000] == list(range(60))


def test_a_failing_step_is_an_error_like_any_other(store, table):
    def fail(step: str) -> None:
        if step == "tables.commit.list.after":
            raise OSError("disk trouble")

    with handled(fail), pytest.raises(OSError, match="disk trouble"):
        append(store, table, 3)
    assert offsets_in(append(store, store.load(NAME), 3).table) == [0, 1, 2]


def test_columns_may_come_while_batches_are_written(store, table):
    table = append(store, table, 3).table
    wider = evolve_schema(store, table, pa.schema([("note", pa.string())]))
    table = append(store, table, 3).table
    assert wider.schema().find_field("note").field_type == table.schema().find_field("note").field_type
    assert offsets_in(table) == list(range(6))


def test_files_are_removed_by_their_bounds_and_the_position_stays(store, table):
    table = append_until(store, table, 20, 5)[0]
    before = reached(table)
    removal = remove_files(store, table, LessThan("offset", 12))
    assert (removal.files, removal.rows) == (2, 10)
    assert removal.size > 0
    assert offsets_in(removal.table) == list(range(10, 20)), "a file that holds other rows too must stay whole"
    assert reached(removal.table) == before
    assert removal.table.current_snapshot().summary["total-records"] == "10"
    assert offsets_in(append_until(store, removal.table, 40)[0]) == list(range(10, 40))


def test_nothing_to_remove_is_no_commit(store, table):
    table = append(store, table, 3).table
    assert remove_files(store, table, ["nowhere.parquet"]).table.metadata == table.metadata


def test_removal_goes_on_over_the_commits_of_others_and_lost_replies(store, table):
    stale = append_until(store, table, 9)[0]
    oldest = {file.file_path for file in list_data_files(store, stale)}
    append(store, stale, 3)
    shaky = with_catalog(store, None, lost_on_the_way, applied_but_lost)
    removal = remove_files(shaky, stale, oldest)
    assert removal.files == 3
    assert offsets_in(store.load(NAME)) == [9, 10, 11]
