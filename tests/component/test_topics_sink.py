"""The archive sink: whatever happens between its steps, the table has each acknowledged message once, in order."""

from __future__ import annotations

import pickle
import random
import shutil
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.errors import CircuitOpenError, ConflictError, FrazilError, UnavailableError, UsageError
from frazil.log.batch import Batch
from frazil.log.protocol import Level, Span
from frazil.observe.faultpoints import handled
from frazil.observe.resilience import CircuitBreaker
from frazil.tables import RolledBackError, accept_rollback, find_position
from frazil.tables.writing.data_files import NotWrittenError
from frazil.topics.admin.adopt import Adopting, Choice
from frazil.topics.layout import ARCHIVE
from frazil.topics.positions import ForeignLogError, LogGapError
from frazil.topics.sinks.archive import ArchiveSink, ArchiveWork
from frazil.topics.sinks.engine import Engine
from frazil.topics.sinks.jobs import TasksFailedError, in_process
from frazil.topics.sinks.sink import Work, Written
from tests.sink_kit import SinkKit, sink_kit

TOPIC = "orders"


class FaultError(Exception):
    """The process 'dies' here: nothing below catches it as one of its own."""


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[SinkKit]:
    with sink_kit(tmp_path) as made:
        made.create(TOPIC)
        yield made


@contextmanager
def dying_at(number: int) -> Iterator[list[str]]:
    """Inside the block the given step of sink and tables fails, and with it whoever reached it; yields the steps."""
    seen: list[str] = []

    def reached(step: str) -> None:
        if step.startswith("log."):
            return  # the broker is another process in life, and has its own tests
        seen.append(step)
        if len(seen) == number + 1:
            raise FaultError(step)

    with handled(reached), suppress(FaultError, FrazilError):
        yield seen


def test_messages_arrive_once_and_in_order_with_all_columns(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"a", b"b")
    kit.publish(TOPIC, b"c", headers=pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string())))
    turn = kit.engine(TOPIC).catch_up()
    assert (turn.rows, turn.dead, turn.commits) == (3, 0, 1)
    kit.check(TOPIC)
    rows = kit.rows(TOPIC, ["offset", "topic_name", "segment_id", "segment_offset", "partition", "headers"])
    assert [r["segment_offset"] for r in rows] == [0, 1, 2]
    assert [r["headers"] for r in rows] == [None, None, [("k", "v")]]
    assert {(r["topic_name"], r["segment_id"], r["partition"]) for r in rows} == {(TOPIC, 0, 0)}


def test_a_new_engine_takes_up_where_the_table_says(kit: SinkKit) -> None:
    for i in range(5):
        kit.publish(TOPIC, f"{i}".encode())
        kit.engine(TOPIC).catch_up()
    kit.check(TOPIC)
    assert kit.log.info(TOPIC).sinks == {ARCHIVE: 5}


def test_nothing_new_makes_no_commit(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"a")
    engine = kit.engine(TOPIC)
    engine.catch_up()
    before = kit.table(TOPIC).metadata_location
    assert engine.run_batch(at_once=True).commits == 0
    assert kit.table(TOPIC).metadata_location == before


def test_a_fault_before_or_after_any_step_neither_loses_nor_doubles(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"first")
    kit.engine(TOPIC).catch_up()
    for number in range(1000):
        kit.publish(TOPIC, f"{number}".encode())
        kit.publish(TOPIC, b"x", **{f"c{number}": pa.array([1.5])})
        with dying_at(number) as steps:
            kit.engine(TOPIC).catch_up()
        whole = len(steps) <= number
        kit.engine(TOPIC).catch_up()
        kit.check(TOPIC)
        if whole:
            break
    else:
        raise AssertionError("no batch came through")
    assert {"sink.plan.before", "sink.task.after", "sink.commit.before", "sink.report.after"} <= set(steps)
    assert {"tables.evolve.after", "tables.commit.before", "tables.commit.after"} <= set(steps)


def _amounts(*values: float | None) -> pa.Array:
    return pa.array(values, pa.float64())


def test_rows_that_do_not_fit_become_dead_letters_and_the_others_arrive(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"first", amount=_amounts(1.0))
    kit.engine(TOPIC).catch_up()
    kit.change_type(TOPIC, "amount")
    kit.publish(TOPIC, b"bad", b"good", b"bad too", amount=_amounts(2.5, None, 3.5))
    before = {name: kit.told(TOPIC, name) for name in ("commits_total", "rows_total", "dead_letters_total")}
    turn = kit.engine(TOPIC).catch_up()
    assert (turn.rows, turn.dead) == (1, 2)
    assert [kit.told(TOPIC, name) - value for name, value in before.items()] == [1, 1, 2]
    kit.check(TOPIC, dead=[1, 3])
    letter = kit.dead(TOPIC)[0]
    assert (letter["sink"], letter["reason"], letter["payload"]) == (ARCHIVE, "type", b"bad")
    assert letter["columns"] == '{"amount": 2.5}'
    assert "amount" in letter["error"]
    assert letter["log_id"] == kit.log.info(TOPIC).log_id


def test_killed_between_the_commits_of_two_tables_a_dead_letter_is_there_once(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"first", amount=_amounts(1.0))
    kit.engine(TOPIC).catch_up()
    kit.change_type(TOPIC, "amount")
    kit.publish(TOPIC, b"bad", b"good", amount=_amounts(2.5, None))

    def die(step: str) -> None:
        if step == "sink.dead_letters.after":
            raise FaultError(step)

    with handled(die), pytest.raises(FaultError):
        kit.engine(TOPIC).catch_up()
    assert len(kit.dead(TOPIC)) == 1
    assert len(kit.rows(TOPIC)) == 1
    kit.publish(TOPIC, b"bad again", amount=_amounts(7.5))
    kit.engine(TOPIC).catch_up()
    kit.check(TOPIC, dead=[1, 3])


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_dead_letters_survive_a_fault_at_every_step(kit: SinkKit, stride: int) -> None:
    kit.publish(TOPIC, b"first", amount=_amounts(1.0))
    kit.engine(TOPIC).catch_up()
    kit.change_type(TOPIC, "amount")
    dead: list[int] = []
    for number in range(0, 1000, stride):
        dead.append(kit.publish(TOPIC, b"bad", b"good", amount=_amounts(2.5, None)).offset)
        with dying_at(number) as steps:
            kit.engine(TOPIC).catch_up()
        whole = len(steps) <= number
        kit.engine(TOPIC).catch_up()
        kit.check(TOPIC, dead=dead)
        if whole:
            break
    else:
        raise AssertionError("no batch came through")
    assert {"sink.dead_letters.before", "sink.dead_letters.after", "sink.commit.before"} <= set(steps)


def test_no_batch_is_begun_on_a_storage_that_was_away_too_often(kit: SinkKit) -> None:
    now = 0.0
    breaker = CircuitBreaker("the storage of a test", failures=2, reset=30, clock=lambda: now)
    begun, away = 0, True

    def run(work: Work, spans: Sequence[Span]) -> list[Written]:
        nonlocal begun
        begun += 1
        if away:
            raise TasksFailedError(NotWrittenError("a file could not be written"), [])
        return in_process(work, spans)

    sink = ArchiveSink(kit.store, kit.settings, kit.client.address)
    engine = Engine(TOPIC, sink, kit.client, run, kit.settings.model.pipeline, storage=breaker)
    kit.publish(TOPIC, b"a")
    for _ in range(2):
        with pytest.raises(NotWrittenError):
            engine.run_batch(at_once=True)
    for _ in range(5):
        with pytest.raises(CircuitOpenError, match="the storage of a test failed 2 times in a row"):
            engine.run_batch(at_once=True)
    assert (begun, breaker.state) == (2, "open")
    now, away = 30.0, False
    engine.catch_up()
    assert (begun, breaker.state) == (3, "closed")
    kit.check(TOPIC)


@pytest.mark.parametrize("error", [UnavailableError("the broker is away"), UsageError("something else")])
def test_a_task_that_fails_for_another_reason_says_nothing_about_the_storage(kit: SinkKit, error: FrazilError) -> None:
    breaker = CircuitBreaker("the storage of another test", failures=2, reset=30)

    def run(work: Work, spans: Sequence[Span]) -> list[Written]:
        raise TasksFailedError(error, [])

    sink = ArchiveSink(kit.store, kit.settings, kit.client.address)
    engine = Engine(TOPIC, sink, kit.client, run, kit.settings.model.pipeline, storage=breaker)
    kit.publish(TOPIC, b"a")
    breaker.failed()
    for _ in range(3):
        with pytest.raises(type(error)):
            engine.run_batch(at_once=True)
    assert breaker.state == "closed"
    breaker.failed()
    assert breaker.state == "open", "what failed before still counts"


def test_a_file_that_cannot_be_written_is_told_as_a_failure_of_the_storage_unless_it_is_refused(
    kit: SinkKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.publish(TOPIC, b"a")
    for told, kind in (("AWS Error SLOW_DOWN", NotWrittenError), ("AWS Error ACCESS_DENIED", UnavailableError)):

        def fail(*_: object, told: str = told, **__: object) -> None:
            raise OSError(told)

        with monkeypatch.context() as patched:
            patched.setattr("pyarrow.parquet.ParquetWriter.write_table", fail)
            with pytest.raises(UnavailableError, match="could not be written") as caught:
                kit.engine(TOPIC).catch_up()
        assert type(caught.value) is kind
        assert type(pickle.loads(pickle.dumps(caught.value))) is kind


def test_a_failed_task_leaves_no_files_and_the_batch_is_taken_later(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"a")
    kit.engine(TOPIC).catch_up()
    kit.publish(TOPIC, b"b")

    def fail_after_writing(work: Work, spans: list[Span]) -> list[Written]:
        def failing(span: Span) -> Written:
            if span.start == spans[-1].start:
                raise UnavailableError("the storage does not answer")
            return work(span)

        return in_process(failing, [*spans, Span(10**6, 10**6, 0)])

    with pytest.raises(UnavailableError, match="storage"):
        kit.engine(TOPIC, fail_after_writing).catch_up()  # type: ignore[arg-type]
    assert kit.files(TOPIC) == kit.committed_files(TOPIC)
    kit.engine(TOPIC).catch_up()
    kit.check(TOPIC)


def test_a_task_that_ran_twice_counts_once(kit: SinkKit) -> None:
    def speculative(work: Work, spans: list[Span]) -> list[Written]:
        for span in spans:
            work(span)
        return in_process(work, spans)

    kit.publish(TOPIC, b"a", b"b")
    kit.engine(TOPIC, speculative).catch_up()  # type: ignore[arg-type]
    kit.check(TOPIC)


def test_of_two_engines_one_wins_each_batch_and_none_doubles(kit: SinkKit) -> None:
    engines = [kit.engine(TOPIC) for _ in range(2)]
    done = threading.Event()
    failures: list[BaseException] = []

    def work(engine: object) -> None:
        try:
            while not done.is_set():
                engine.run_batch(at_once=True)  # type: ignore[attr-defined]
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(e,)) for e in engines]
    for thread in threads:
        thread.start()
    for i in range(60):
        kit.publish(TOPIC, f"{i}".encode(), amount=pa.array([i], pa.int32()))
    end = kit.client.info(TOPIC).end
    while not any(e.has_reached(end) for e in engines) and not failures:
        done.wait(0.01)
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    kit.check(TOPIC)


def test_an_engine_that_fell_behind_another_plans_anew(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"a")
    slow, fast = kit.engine(TOPIC), kit.engine(TOPIC)
    slow.catch_up()
    kit.publish(TOPIC, b"b")
    overtaken = False

    def overtake(step: str) -> None:
        nonlocal overtaken
        if step == "sink.write.after" and not overtaken:
            overtaken = True
            fast.catch_up()

    commits, conflicts = kit.told(TOPIC, "commits_total"), kit.told(TOPIC, "conflicts_total")
    with handled(overtake):
        assert slow.run_batch(at_once=True).commits == 0
    assert kit.told(TOPIC, "conflicts_total") - conflicts == 1
    assert kit.told(TOPIC, "commits_total") - commits == 1, "the faster one's"
    slow.catch_up()
    kit.check(TOPIC)
    assert kit.files(TOPIC) == kit.committed_files(TOPIC)


def test_an_engine_that_was_overtaken_together_with_the_log_needs_no_person(tmp_path: Path) -> None:
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        kit.create(TOPIC)
        kit.publish(TOPIC, b"a")
        slow, fast = kit.engine(TOPIC), kit.engine(TOPIC)
        slow.catch_up()
        for _ in range(6):
            kit.publish(TOPIC, b"x" * 2000)
        fast.catch_up()
        assert kit.client.retain(TOPIC, size=1).start > 1
        slow.catch_up()
        kit.publish(TOPIC, b"b")
        slow.catch_up()
        kit.check(TOPIC)


def test_a_table_that_moves_on_while_it_is_looked_at_is_not_taken_to_be_ahead_of_the_log(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"a")
    slow, fast = kit.engine(TOPIC), kit.engine(TOPIC)
    fast.catch_up()
    overtaken = False

    def overtake(step: str) -> None:
        nonlocal overtaken
        if step == "sink.look.before" and not overtaken:
            overtaken = True
            kit.publish(TOPIC, b"b")
            fast.catch_up()

    with handled(overtake):
        slow.run_batch(at_once=True)
    assert overtaken
    slow.catch_up()
    kit.check(TOPIC)


def test_old_and_new_producers_write_at_once_and_the_table_learns_the_columns(kit: SinkKit) -> None:
    engine = kit.engine(TOPIC)
    kit.publish(TOPIC, b"old")
    engine.catch_up()
    kit.publish(TOPIC, b"new", amount=pa.array([1], pa.int32()))
    kit.publish(TOPIC, b"old again")
    engine.catch_up()
    kit.publish(TOPIC, b"wider", amount=pa.array([2**40], pa.int64()), tags=pa.array([["x", "y"]]))
    kit.publish(TOPIC, b"narrow still", amount=pa.array([3], pa.int32()))
    engine.catch_up()
    rows = kit.rows(TOPIC, ["offset", "amount", "tags"])
    assert [r["amount"] for r in rows] == [None, 1, None, 2**40, 3]
    assert rows[3]["tags"] == ["x", "y"]
    kit.check(TOPIC)


def test_a_column_that_comes_while_a_batch_is_planned_is_not_lost(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"a")
    engine = kit.engine(TOPIC)
    engine.catch_up()
    kit.publish(TOPIC, b"b")
    came = False

    def come(step: str) -> None:
        nonlocal came
        if step == "sink.plan.before" and not came:
            came = True
            kit.publish(TOPIC, b"c", late=pa.array(["kept"]))

    with handled(come):
        engine.catch_up()
    engine.catch_up()
    assert [r["late"] for r in kit.rows(TOPIC, ["offset", "late"])] == [None, None, "kept"]


def test_a_sink_that_is_enabled_late_takes_everything_that_the_log_has(kit: SinkKit) -> None:
    kit.create("late", storage="log")
    kit.publish("late", b"a", b"b")
    kit.client.configure("late", {"storage": "iceberg"})
    kit.publish("late", b"c")
    kit.engine("late").catch_up()
    kit.check("late")


def test_after_a_rollback_the_engine_stops_and_asks(kit: SinkKit) -> None:
    for payload in (b"a", b"b", b"c"):
        kit.publish(TOPIC, payload)
        kit.engine(TOPIC).catch_up()
    table = kit.table(TOPIC)
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    kit.publish(TOPIC, b"d")
    with pytest.raises(RolledBackError, match="rolled back"):
        kit.engine(TOPIC).catch_up()
    accept_rollback(kit.store, kit.table(TOPIC), ARCHIVE, TOPIC, keep=False)
    kit.engine(TOPIC).catch_up()
    kit.check(TOPIC)


def test_an_idle_engine_that_looks_again_writes_what_a_rewind_took_out(kit: SinkKit) -> None:
    engine = kit.engine(TOPIC)
    for payload in (b"a", b"b", b"c"):
        kit.publish(TOPIC, payload)
        engine.catch_up()
    engine.run_batch(at_once=True)
    table = kit.table(TOPIC)
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()
    accept_rollback(kit.store, kit.table(TOPIC), ARCHIVE, TOPIC, keep=False)
    engine.invalidate()
    engine.run_batch(at_once=True)
    engine.catch_up()
    kit.check(TOPIC)


def test_what_another_pipeline_has_taken_is_not_written_again_in_vain(kit: SinkKit) -> None:
    engines = [kit.engine(TOPIC) for _ in range(2)]
    for engine in engines:
        engine.run_batch(at_once=True)
    written: list[str] = []
    for number in range(4):
        kit.publish(TOPIC, b"%d" % number)
        engines[number % 2].run_batch(at_once=True)
        with handled(written.append):
            engines[1 - number % 2].run_batch(at_once=True)
    assert "sink.look.before" in written and "sink.write.before" not in written
    kit.check(TOPIC)


@contextmanager
def rolled_back(folder: Path) -> Iterator[SinkKit]:
    """Six messages, each in a segment and a commit of its own, and the table taken back to the second."""
    with sink_kit(folder, **{"log.max_file_size": "4096"}) as kit:
        kit.create(TOPIC)
        engine = kit.engine(TOPIC)
        for _ in range(6):
            kit.publish(TOPIC, b"x" * 2000)
            engine.catch_up()
        table = kit.table(TOPIC)
        table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[1].snapshot_id).commit()
        yield kit


def test_what_a_rewind_has_to_write_again_is_not_taken_out_of_the_log(tmp_path: Path) -> None:
    with rolled_back(tmp_path) as kit:
        adopting = Adopting(kit.client, kit.settings, TOPIC, kit.tables, "rewind")
        adopting.do(adopting.plan())
        assert kit.client.retain(TOPIC, size=1).start <= 2
        kit.engine(TOPIC).catch_up()
        kit.check(TOPIC)


def test_a_rewind_that_the_log_can_no_longer_serve_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with rolled_back(tmp_path) as kit:
        adopting = Adopting(kit.client, kit.settings, TOPIC, kit.tables, "rewind")
        plan = adopting.plan()
        kit.client.retain(TOPIC, size=1)
        before = kit.table(TOPIC).metadata_location
        with pytest.raises(ConflictError, match="it cannot be written again"):
            adopting.do(plan)
        assert kit.table(TOPIC).metadata_location == before


def without_telling_snapshots(kit: SinkKit) -> None:
    """Others rewrite the rows and expire all that was before; a batch comes, and somebody takes it back."""
    for payload in (b"a", b"b"):
        kit.publish(TOPIC, payload)
        kit.engine(TOPIC).catch_up()
    kit.table(TOPIC).overwrite(kit.table(TOPIC).scan().to_arrow())
    table = kit.table(TOPIC)
    rewritten = table.metadata.current_snapshot_id
    old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != rewritten]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    kit.publish(TOPIC, b"c", b"d")
    kit.engine(TOPIC).catch_up()
    kit.table(TOPIC).manage_snapshots().set_current_snapshot(snapshot_id=rewritten).commit()


@pytest.mark.parametrize("choice", ["rewind", "keep"])
def test_where_no_snapshot_tells_how_far_a_table_is_its_rows_do(kit: SinkKit, choice: Choice) -> None:
    without_telling_snapshots(kit)
    adopting = Adopting(kit.client, kit.settings, TOPIC, kit.tables, choice)
    plan = adopting.plan()
    assert (plan.before, plan.after) == (4, 2 if choice == "rewind" else 4) and "from offset 4 to 2" in plan.message
    adopting.do(plan)
    kit.publish(TOPIC, b"e")
    kit.engine(TOPIC).catch_up()
    assert [row["offset"] for row in kit.rows(TOPIC)] == ([0, 1, 2, 3, 4] if choice == "rewind" else [0, 1, 4])


def test_where_neither_snapshots_nor_rows_tell_how_far_a_table_is_a_rewind_is_refused(
    kit: SinkKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a sink whose rows have no offsets."""
    without_telling_snapshots(kit)
    monkeypatch.setattr("frazil.topics.admin.adopt.ARCHIVE", "another")
    before = kit.table(TOPIC).metadata_location
    with pytest.raises(ConflictError, match="to an unknown offset: rows that it has would be written again") as error:
        Adopting(kit.client, kit.settings, TOPIC, kit.tables, "rewind").plan()
    assert "--keep" in str(error.value.hint) and kit.table(TOPIC).metadata_location == before


def test_a_foreign_commit_between_write_and_commit_is_harmless(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"a")
    engine = kit.engine(TOPIC)
    engine.catch_up()
    kit.publish(TOPIC, b"b")

    def meddle(step: str) -> None:
        if step == "sink.write.after":
            with kit.table(TOPIC).transaction() as transaction:
                transaction.set_properties(owner=str(uuid.uuid4()))

    with handled(meddle):
        engine.catch_up()
    kit.check(TOPIC)


def test_another_log_is_refused_until_it_is_adopted(tmp_path: Path) -> None:
    with sink_kit(tmp_path) as kit:
        kit.create(TOPIC)
        kit.publish(TOPIC, b"a")
        kit.engine(TOPIC).catch_up()
        kit.log.delete_topic(TOPIC)
        kit.create(TOPIC)
        with pytest.raises(ForeignLogError, match="was written from log") as caught:
            kit.engine(TOPIC).catch_up()
        assert caught.value.hint is not None
        assert f"frazil topic adopt {TOPIC}" in caught.value.hint
        with pytest.raises(ForeignLogError):
            kit.publish(TOPIC, b"b")


def test_a_log_that_lost_what_the_table_needs_is_told_with_the_range(tmp_path: Path) -> None:
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        kit.create(TOPIC)
        kit.publish(TOPIC, b"a")
        kit.engine(TOPIC).catch_up()
        for _ in range(8):
            kit.publish(TOPIC, b"x" * 2000)
        kit.client.configure(TOPIC, {"storage": "log"})
        kit.client.retain(TOPIC, size=1)
        start = kit.client.info(TOPIC).start
        assert start > 1
        kit.client.configure(TOPIC, {"storage": "iceberg"})
        with pytest.raises(LogGapError, match=f"begins at offset {start}, but sink archive needs it from 1 on"):
            kit.engine(TOPIC).catch_up()


def test_a_lost_log_goes_on_above_the_table_and_nothing_is_waited_for(tmp_path: Path) -> None:
    """An older copy of the log is brought back: the offsets that the table has are not given out again."""
    with sink_kit(tmp_path) as kit:
        kit.create(TOPIC)
        kit.publish(TOPIC, b"a")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with sink_kit(tmp_path) as kit:
        kit.acknowledged[TOPIC] = {0: b"a"}
        kit.publish(TOPIC, b"b", b"c")
        kit.engine(TOPIC).catch_up()
        acknowledged = kit.acknowledged
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "copy", tmp_path / "log")
    with sink_kit(tmp_path) as kit:
        kit.acknowledged = acknowledged
        kit.engine(TOPIC).catch_up()
        kit.check(TOPIC)
        assert kit.publish(TOPIC, b"d").offset >= 3
        kit.engine(TOPIC).catch_up()
        kit.check(TOPIC)


def test_what_is_not_on_disk_yet_is_synced_before_it_is_taken(tmp_path: Path) -> None:
    with sink_kit(tmp_path, **{"log.sync_mode": "none", "log.sync_interval_ms": "3600000"}) as kit:
        kit.create(TOPIC)
        kit.log.publish(TOPIC, b"a", level="os")
        assert kit.log.info(TOPIC).end == 0
        kit.engine(TOPIC).run_batch(at_once=True)
        assert [r["payload"] for r in kit.rows(TOPIC)] == [b"a"]
        assert kit.log.info(TOPIC).end == 1


def test_a_batch_is_taken_at_its_size_or_after_its_lag_and_not_before(tmp_path: Path) -> None:
    now = 2_000_000_000.0
    flags = {"pipeline.target_bytes": "10000", "pipeline.max_lag_ms": "5000"}
    with sink_kit(tmp_path, **flags) as kit:
        kit.create(TOPIC)
        engine = kit.engine(TOPIC)
        published = kit.publish(TOPIC, b"small")
        now = published.time_us / 1e6
        engine._clock = lambda: now
        assert engine.run_batch().commits == 0
        now += 4.9
        assert engine.run_batch().commits == 0
        now += 0.2
        assert engine.run_batch().commits == 1
        kit.publish(TOPIC, b"x" * 20000)
        assert engine.run_batch().commits == 1
        kit.check(TOPIC)


def test_a_table_keeps_its_position_when_every_snapshot_but_the_last_is_gone(kit: SinkKit) -> None:
    engine = kit.engine(TOPIC)
    for i in range(60):
        kit.publish(TOPIC, f"{i}".encode())
        engine.catch_up()
    table = kit.table(TOPIC)
    assert len(table.metadata.snapshots) <= 50
    position = find_position(table, ARCHIVE, TOPIC)
    assert position is not None
    assert position.offsets == {0: 60}
    kit.check(TOPIC)


def test_retention_takes_old_messages_out_of_the_table_and_not_the_position(tmp_path: Path) -> None:
    with sink_kit(tmp_path, **{"topics.retention_bytes": "1"}) as kit:
        kit.create(TOPIC)
        for i in range(3):
            kit.publish(TOPIC, f"{i}".encode())
            kit.engine(TOPIC).catch_up()
        kit.engine(TOPIC).run_batch()
        assert [r["offset"] for r in kit.rows(TOPIC)] == [2]
        kit.publish(TOPIC, b"3")
        kit.engine(TOPIC).catch_up()
        assert 3 in [r["offset"] for r in kit.rows(TOPIC)]


def test_work_is_small_on_the_wire(kit: SinkKit) -> None:
    import pickle

    kit.publish(TOPIC, b"a")
    sizes: list[int] = []

    def weigh(work: Work, spans: list[Span]) -> list[Written]:
        assert isinstance(work, ArchiveWork)
        sizes.append(len(pickle.dumps(work)))
        return in_process(pickle.loads(pickle.dumps(work)), spans)

    kit.engine(TOPIC, weigh).catch_up()  # type: ignore[arg-type]
    assert sizes[0] < 20_000


class _Schedule:
    """Random steps of producers, engines and faults, the same for the same seed."""

    def __init__(self, kit: SinkKit, seed: int) -> None:
        self.kit, self.random = kit, random.Random(seed)
        self.engines = [kit.engine(TOPIC) for _ in range(2)]
        self.number = 0

    def step(self) -> None:
        choice = self.random.randrange(6)
        if choice <= 1:
            self._publish()
        elif choice == 2:
            self.random.choice(self.engines).run_batch(at_once=True)
        elif choice == 3:
            self._turn_with_fault()
        elif choice == 4:
            self.engines[self.random.randrange(2)] = self.kit.engine(TOPIC)
        else:
            self._overtaken()

    def _publish(self) -> None:
        self.number += 1
        payloads = [f"{self.number}-{i}".encode() for i in range(self.random.randint(1, 5))]
        if self.random.random() < 0.3:
            column = f"c{self.random.randrange(3)}"
            self.kit.publish(TOPIC, *payloads, **{column: pa.array([1] * len(payloads), pa.int64())})
        else:
            self.kit.publish(TOPIC, *payloads)

    def _turn_with_fault(self) -> None:
        with dying_at(self.random.randrange(30)):
            self.random.choice(self.engines).run_batch(at_once=True)

    def _overtaken(self) -> None:
        one, other = self.random.sample(self.engines, 2)
        pending = True

        def overtake(step: str) -> None:
            nonlocal pending
            if step == "sink.write.after" and pending:
                pending = False
                other.run_batch(at_once=True)

        with handled(overtake):
            one.run_batch(at_once=True)


@pytest.mark.deep
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_any_schedule_of_producers_engines_and_faults_ends_exactly_once(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with sink_kit(tmp_path_factory.mktemp("schedule")) as kit:
        kit.create(TOPIC)
        kit.publish(TOPIC, b"first")
        schedule = _Schedule(kit, seed)
        for _ in range(25):
            schedule.step()
        kit.engine(TOPIC).catch_up()
        kit.check(TOPIC)


# -- faults at steps that not every batch has --------------------------------------------------------------------------


@contextmanager
def dying_before(step: str) -> Iterator[None]:
    """Whoever reaches the step dies there; somebody does."""

    def reached(name: str) -> None:
        if name == step:
            raise FaultError(step)

    with handled(reached), pytest.raises(FaultError):
        yield


@pytest.mark.parametrize("step", ["tables.create.before", "tables.create.after", "sink.sync.before"])
def test_a_fault_in_a_first_batch_neither_loses_nor_doubles(kit: SinkKit, step: str) -> None:
    """It makes the table, and has the log bring to the disk what nobody wanted to wait for."""
    kit.publish(TOPIC, b"a", b"b")
    last = kit.client.append(TOPIC, Batch.of_messages([b"c"]), Level.os)
    kit.acknowledged[TOPIC][last.offset] = b"c"
    with dying_before(step):
        engine = kit.engine(TOPIC)
        engine._prepared = True  # else it has the log synced at once
        engine.run_batch(at_once=True)
    kit.engine(TOPIC).catch_up()
    kit.check(TOPIC)


@pytest.mark.parametrize(
    "step", ["sink.expire.before", "tables.remove.before", "tables.remove.after", "sink.expire.after"]
)
def test_a_fault_in_a_retention_of_the_table_leaves_the_newest_rows(tmp_path: Path, step: str) -> None:
    with sink_kit(tmp_path, **{"topics.retention_bytes": "1"}) as kit:
        kit.create(TOPIC)
        engine = kit.engine(TOPIC)
        for payload in (b"a", b"b", b"c"):
            kit.publish(TOPIC, payload)
            engine.catch_up()
        with dying_before(step):
            kit.engine(TOPIC).run_batch()
        assert [r["payload"] for r in kit.rows(TOPIC)][-1] == b"c"
        kit.engine(TOPIC).run_batch()
        assert [(r["offset"], r["payload"]) for r in kit.rows(TOPIC)] == [(2, b"c")]
        kit.publish(TOPIC, b"d")
        engine.catch_up()
        assert [(r["offset"], r["payload"]) for r in kit.rows(TOPIC)][-1] == (3, b"d")


@pytest.mark.parametrize("step", ["tables.position.before", "tables.position.after"])
def test_a_fault_in_an_adoption_leaves_it_to_be_done_or_done(kit: SinkKit, step: str) -> None:
    kit.publish(TOPIC, b"a")
    kit.engine(TOPIC).catch_up()
    kit.log.delete_topic(TOPIC)
    kit.create(TOPIC)
    with dying_before(step):
        adopting = Adopting(kit.client, kit.settings, TOPIC, kit.tables)
        adopting.do(adopting.plan())
    again = Adopting(kit.client, kit.settings, TOPIC, kit.tables)
    assert again.plan().problem == ("new_log" if step == "tables.position.before" else "none")
    again.do(again.plan())
    kit.publish(TOPIC, b"b")
    kit.engine(TOPIC).catch_up()
    kit.check(TOPIC)


def test_the_log_never_hears_of_an_offset_that_the_table_does_not_have_yet(kit: SinkKit) -> None:
    """Retention goes by what the log heard, so that it must not hear it before the commit."""
    heard: list[tuple[str, int, int]] = []

    def compare(step: str) -> None:
        reported = kit.log.info(TOPIC).sinks[ARCHIVE] or 0
        if step.startswith(("sink.", "tables.")) and reported:
            position = find_position(kit.table(TOPIC), ARCHIVE, TOPIC)
            heard.append((step, reported, position.offsets[0] if position else 0))

    engine = kit.engine(TOPIC)
    with handled(compare):
        for n in range(3):
            kit.publish(TOPIC, b"%d" % n)
            engine.catch_up()
    assert any(step == "tables.commit.before" for step, _, _ in heard)
    assert [found for found in heard if found[1] > found[2]] == []
