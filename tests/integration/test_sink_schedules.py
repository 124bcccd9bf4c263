"""Random schedules of all that can happen between producers, log, sinks and table, against an oracle in plain Python.

The oracle: the table has what was acknowledged, once, in order, up to its position; a replay has all of it.
"""

from __future__ import annotations

import functools
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DateType

from frazil.errors import ConflictError, FrazilError, UnavailableError
from frazil.log.batch import Batch
from frazil.log.log import Log
from frazil.log.protocol import Level
from frazil.log.remote.broker import Broker
from frazil.log.remote.client import Client
from frazil.observe.faultpoints import handled
from frazil.settings import NetworkSettings, load_settings
from frazil.tables import RolledBackError, TableStore, find_position
from frazil.tables.position import list_ancestors
from frazil.tables.store import LazyStore, find_table
from frazil.topics.admin.adopt import Adopting
from frazil.topics.committed_offsets import committed_offsets
from frazil.topics.layout import ARCHIVE, dead_letters_name, table_name
from frazil.topics.reading.reader import TopicReader, reader_of
from tests.faulty_disk import FaultyDisk
from tests.log_kit import crash
from tests.machine import machine_flags
from tests.services.process import free_port
from tests.sink_kit import SinkKit
from tests.tables import Wrapped, applied_but_lost, lost_on_the_way

TOPIC = "orders"
#: Steps of a turn between which others may do something.
STEPS = (
    "sink.look.before", "sink.look.after", "sink.plan.before", "sink.plan.after", "sink.task.after", "sink.write.after",
    "sink.commit.before", "tables.commit.manifests.after", "tables.commit.before", "tables.commit.after",
    "sink.commit.after", "sink.report.before", "sink.report.after",
)  # fmt: skip
#: What they may do then.
MEDDLING = (
    "property", "type", "compaction", "expiry", "retention", "turn", "message", "message and turn", "restart", "crash",
)  # fmt: skip
ENGINES = st.integers(0, 1)
SIZES = st.lists(st.sampled_from([0, 1, 100, 1500]), min_size=1, max_size=5)


class DeadError(Exception):
    """The process 'dies' here: nothing below catches it as one of its own."""


def step(taken: Callable[..., None]) -> Callable[..., None]:
    """A step after which everything is looked at. One that fails is the last: the end does not hide it."""

    @functools.wraps(taken)
    def whole(machine: Schedules, **chosen: Any) -> None:
        machine.sound = False
        taken(machine, **chosen)
        machine.check_table()
        machine.sound = True

    return whole


class Schedules(RuleBasedStateMachine):
    """One topic, its log on a disk that can lose its power, two pipelines, and all who have a hand in the table."""

    sound = False

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="frazil-sink-schedule-"))
        flags = {
            **machine_flags(), "home": str(self.folder / "home"), "log.min_free": "0", "log.max_file_size": "4096",
            "log.sync_interval_ms": "3600000", "pipeline.target_bytes": "3000", "topics.keep_snapshots": "4",
            "network.retry_attempts": "2", "network.breaker_failures": "1000",
        }  # fmt: skip
        self.settings = load_settings(flags=flags, environ={})
        (self.folder / "log").mkdir()
        self.disk = FaultyDisk(self.folder / "log")
        self.port = free_port()
        self.number = self.sequence = 0
        #: Acknowledged at `disk`, and at `os`: these a power cut may take.
        self.promised: dict[int, bytes] = {}
        self.hoped: dict[int, bytes] = {}
        #: The end of the log in the copy that somebody has made of it.
        self.copied: int | None = None
        #: Before this snapshot the table cannot be written again: the log was another one.
        self.oldest = 0
        self.open()
        self.kit.create(TOPIC)
        self.producer = self.kit.client.register(TOPIC, "billing")
        self.sound = True

    def open(self) -> None:
        """The broker begins, always at the same address; pipelines go on or begin anew, as the schedule wants it."""
        log = Log.open(
            self.folder / "log", self.settings.model.log, floor=committed_offsets(self.settings), disk=self.disk
        )
        self.stack = ExitStack()
        broker = self.stack.enter_context(Broker(log, port=self.port))
        client = self.stack.enter_context(Client(broker.address, self.settings.model.network))
        tables = self.stack.enter_context(LazyStore(self.settings))
        self.kit, self.tables = SinkKit(self.settings, log, client, tables), tables
        self.kit.acknowledged[TOPIC] = self.promised
        self.engines = [self.kit.engine(TOPIC) for _ in range(2)]

    def teardown(self) -> None:
        if not hasattr(self, "stack"):
            return
        try:
            if self.sound:
                self.kit.engine(TOPIC).catch_up()
                self.check_table()
                assert self.in_table(2**62) == self.acknowledged(), "all has arrived"
                self.check_replay(0)
        finally:
            self.stack.close()
            crash(self.kit.log)
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- the oracle --------------------------------------------------------------------------------------------------

    def check_table(self) -> None:
        table = find_table(self.kit.store, table_name(self.settings, TOPIC))
        if table is None:
            return
        end = self.reached()
        assert self.in_table(end) == [(o, p) for o, p in self.acknowledged() if o < end]

    def reached(self) -> int:
        table = find_table(self.kit.store, table_name(self.settings, TOPIC))
        reached = find_position(table, ARCHIVE, TOPIC) if table is not None else None
        return reached.offsets[0] if reached is not None else 0

    def in_table(self, end: int) -> list[tuple[int, bytes]]:
        """Its rows, and the messages that it could not take; their letters may be there before the batch is."""
        rows = [(r["offset"], r["payload"]) for r in self.kit.rows(TOPIC)]
        return sorted([*rows, *((o, p) for o, p in self.letters() if o < end)])

    def letters(self) -> list[tuple[int, bytes]]:
        if find_table(self.kit.store, dead_letters_name(self.settings)) is None:
            return []
        return [(r["offset"], r["payload"]) for r in self.kit.dead(TOPIC)]

    def check_replay(self, start: int) -> None:
        end = self.kit.client.info(TOPIC).end
        expected = [(o, p) for o, p in self.acknowledged() if start <= o < end]
        for first in ("table", "log"):
            reader = reader_of(self.kit.client, self.settings, TOPIC, self.tables, first=first)  # type: ignore[arg-type]
            parts = list(reader.read(start, end=end, columns=["offset", "payload"])) if end > start else []
            assert [(r["offset"], r["payload"]) for part in parts for r in part.to_pylist()] == expected, first

    def acknowledged(self) -> list[tuple[int, bytes]]:
        return sorted({**self.promised, **self.hoped}.items())

    # -- producers ---------------------------------------------------------------------------------------------------

    def payloads(self, sizes: list[int]) -> list[bytes]:
        self.number += 1
        return [b"%d-%d:" % (self.number, i) + b"." * size for i, size in enumerate(sizes)]

    @rule(sizes=SIZES, level=st.sampled_from([Level.disk, Level.os]))
    @step
    def publish(self, sizes: list[int], level: Level) -> None:
        payloads = self.payloads(sizes)
        ack = self.kit.client.append(TOPIC, Batch.of_messages(payloads), level)
        (self.promised if level is Level.disk else self.hoped).update(enumerate(payloads, ack.offset))

    @rule(sizes=SIZES, column=st.sampled_from(["amount", "colour", "weight"]))
    @step
    def publish_with_a_column(self, sizes: list[int], column: str) -> None:
        payloads = self.payloads(sizes)
        self.kit.publish(TOPIC, *payloads, **{column: pa.array([1] * len(payloads), pa.int64())})

    @rule(sizes=SIZES)
    @step
    def publish_everything_twice(self, sizes: list[int]) -> None:
        payloads, producer = self.payloads(sizes), self.producer
        batch = Batch.of_messages(payloads).with_sequence(producer.producer_id, producer.producer_epoch, self.sequence)
        self.sequence += 1
        first, again = (self.kit.client.append(TOPIC, batch, Level.disk) for _ in range(2))
        assert (first.duplicate, again.duplicate, again.offset) == (False, True, first.offset)
        self.promised.update(enumerate(payloads, first.offset))

    # -- pipelines ---------------------------------------------------------------------------------------------------

    @rule(which=ENGINES)
    @step
    def turn(self, which: int) -> None:
        self.engines[which].run_batch(at_once=True)

    @rule(which=ENGINES)
    @step
    def a_pipeline_begins_anew_and_takes_all(self, which: int) -> None:
        self.engines[which] = self.kit.engine(TOPIC)
        self.engines[which].catch_up()

    @rule(which=ENGINES, at=st.integers(0, 35), goes_on=st.booleans())
    @step
    def a_turn_fails(self, which: int, at: int, goes_on: bool) -> None:
        self.turn_that_dies(which, lambda number, _: number == at)
        if not goes_on:
            self.engines[which] = self.kit.engine(TOPIC)

    def turn_that_dies(self, which: int, dies: Callable[[int, str], bool]) -> None:
        numbers = iter(range(10_000))

        def reached(name: str) -> None:
            if not name.startswith("log.") and dies(next(numbers), name):
                raise DeadError(name)

        with handled(reached), suppress(DeadError, FrazilError):
            self.engines[which].run_batch(at_once=True)

    @rule(which=ENGINES, late=st.booleans(), how=st.sampled_from([applied_but_lost, lost_on_the_way]))
    @step
    def a_commit_gets_no_reply(self, which: int, late: bool, how: Callable[..., object]) -> None:
        waiting: list[Any] = []

        def delayed(_: Callable[..., object], *args: Any) -> object:
            waiting.append(args)
            raise TimeoutError("no answer in time")

        def overtaken(real: Callable[..., object], *args: Any) -> object:
            while waiting:
                with suppress(CommitFailedException):
                    real(*waiting.pop())
            return real(*args)

        commits = (delayed, overtaken) if late else (how,)
        patient = NetworkSettings(retry_attempts=3, breaker_failures=1000)
        wrapped = Wrapped(self.kit.store.catalog, commits)
        with TableStore(wrapped, self.kit.store.settings, patient) as store:  # type: ignore[arg-type]
            self.kit.engine(TOPIC, store=store).run_batch(at_once=True)
        self.engines[which].invalidate()

    # -- others, between turns and in the middle of one --------------------------------------------------------------

    @rule(what=st.sampled_from(["property", "tag", "type", "compaction", "expiry", "retention", "restart"]))
    @step
    def somebody_does(self, what: str) -> None:
        self.meddle(what, 1)

    @rule(
        which=ENGINES,
        at=st.sampled_from(STEPS),
        what=st.sampled_from(MEDDLING),
    )
    @step
    def somebody_does_in_the_middle_of_a_turn(self, which: int, at: str, what: str) -> None:
        pending = True
        engine = self.engines[which]

        def reached(name: str) -> None:
            nonlocal pending
            if name == at and pending:
                pending = False
                self.meddle(what, 1 - which)

        # Where the log was opened anew, it says so, and the batch is begun again. Nothing else may be wrong.
        with handled(reached), suppress(UnavailableError):
            engine.run_batch(at_once=True)

    def meddle(self, what: str, other: int) -> None:
        table = find_table(self.kit.store, table_name(self.settings, TOPIC))
        if what in ("turn", "message and turn"):
            if what != "turn":
                self.meddle("message", other)
            self.engines[other].run_batch(at_once=True)
        elif what == "message":
            [payload] = self.payloads([10])
            self.kit.publish(TOPIC, payload)
        elif what == "retention":
            self.kit.client.retain(TOPIC, size=1)
        elif what in ("restart", "crash"):
            self.restart(gently=what == "restart")
        elif table is not None:
            _foreign(table, what)

    def restart(self, *, gently: bool) -> None:
        engines, log = self.engines, self.kit.log
        self.stack.close()
        log.close() if gently else crash(log)
        self.open()
        self.engines = engines

    @rule()
    @step
    def the_broker_dies(self) -> None:
        self.restart(gently=False)

    @rule(chance=st.none() | st.randoms(use_true_random=False), after_commit=st.booleans(), which=ENGINES)
    @step
    def the_power_is_cut(self, chance: random.Random | None, after_commit: bool, which: int) -> None:
        if after_commit:
            self.turn_that_dies(which, lambda _, name: name == "sink.commit.after")
        visible = self.kit.client.info(TOPIC).end
        self.stack.close()
        crash(self.kit.log)
        self.disk.power_loss(chance)
        self.open()
        reader = TopicReader(self.kit.client, TOPIC)
        end = self.kit.client.sync(TOPIC)
        left = {r["offset"]: r["payload"] for part in reader.read(end=end) for r in part.to_pylist()} if end else {}
        lost = {o: p for o, p in self.hoped.items() if o >= visible and left.get(o) != p}
        self.hoped = {o: p for o, p in self.hoped.items() if o not in lost}

    # -- the log's folder --------------------------------------------------------------------------------------------

    @rule()
    @step
    def somebody_copies_the_log(self) -> None:
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        self.exchange(lambda: shutil.copytree(self.folder / "log", self.folder / "copy"))
        self.copied = self.kit.client.sync(TOPIC)

    @precondition(lambda self: self.copied is not None)
    @rule()
    @step
    def somebody_brings_the_copy_back(self) -> None:
        """What is younger, and in no table, is lost. What a table has is not; nor are its offsets given out anew."""
        assert self.copied is not None
        self.lose(max(self.copied, self.reached()))
        self.exchange(self.put_copy)
        self.begin_anew()

    @rule()
    @step
    def the_log_is_lost_and_a_person_adopts_a_new_one(self) -> None:
        self.lose(self.reached())
        self.exchange(lambda: shutil.rmtree(self.folder / "log" / "topics"))
        shutil.rmtree(self.folder / "copy", ignore_errors=True)
        self.copied = None
        self.kit.create(TOPIC)
        table = find_table(self.kit.store, table_name(self.settings, TOPIC))
        if table is not None:
            adopting = Adopting(self.kit.client, self.settings, TOPIC, self.tables)
            adopting.do(adopting.plan())
        self.begin_anew()

    def put_copy(self) -> None:
        shutil.rmtree(self.folder / "log")
        shutil.copytree(self.folder / "copy", self.folder / "log")

    def lose(self, end: int) -> None:
        """From an offset on nothing is left, but for dead letters: they are written before the rows of their batch."""
        kept = dict(self.letters())
        for acknowledged in (self.promised, self.hoped):
            for offset in [o for o, p in acknowledged.items() if o >= end and kept.get(o) != p]:
                del acknowledged[offset]

    def exchange(self, put: Callable[[], object]) -> None:
        """Does something to the folder of the log while no broker runs."""
        engines, log = self.engines, self.kit.log
        self.stack.close()
        log.close()
        put()
        self.disk = FaultyDisk(self.folder / "log")
        self.open()
        self.engines = engines

    def begin_anew(self) -> None:
        """Producers register again, and the table does not go back to what this log does not have."""
        self.producer, self.sequence = self.kit.client.register(TOPIC, "billing"), 0
        self.kit.client.sync(TOPIC)
        table = find_table(self.kit.store, table_name(self.settings, TOPIC))
        self.oldest = table.metadata.last_sequence_number if table is not None else 0

    @precondition(lambda self: len(self.history()) > 1)
    @rule(back=st.integers(1, 3), which=ENGINES)
    @step
    def somebody_rolls_back_and_a_person_decides(self, back: int, which: int) -> None:
        table, history = self.kit.table(TOPIC), self.history()
        newest = table.metadata.current_snapshot_id
        table.manage_snapshots().set_current_snapshot(snapshot_id=history[min(back, len(history) - 1)]).commit()
        try:
            find_position(self.kit.table(TOPIC), ARCHIVE, TOPIC)
        except RolledBackError:
            with pytest.raises(RolledBackError):
                self.kit.engine(TOPIC).run_batch(at_once=True)
        else:
            return  # to another snapshot of the same position
        adopting = Adopting(self.kit.client, self.settings, TOPIC, self.tables, "rewind")
        try:
            adopting.do(adopting.plan())
        except ConflictError as error:
            assert "the log begins at" in error.message
            self.kit.table(TOPIC).manage_snapshots().set_current_snapshot(snapshot_id=newest).commit()
        self.engines[which].invalidate()

    def history(self) -> list[int]:
        """The snapshots that somebody may go back to. PyIceberg's overwrite is two, the first of which has no rows."""
        if (table := find_table(self.kit.store, table_name(self.settings, TOPIC))) is None:
            return []
        chain = list_ancestors(table.metadata)
        kept = [s for s in chain if (s.sequence_number or 0) >= self.oldest]
        return [s.snapshot_id for s in kept if s.summary and s.summary.operation is not Operation.DELETE]

    # -- readers -----------------------------------------------------------------------------------------------------

    @rule(part=st.floats(0, 1))
    @step
    def replay(self, part: float) -> None:
        self.check_replay(int(part * self.kit.client.info(TOPIC).end))


def _foreign(table: Any, what: str) -> None:
    """What others do to the table without asking."""
    current = table.current_snapshot()
    if what == "property":
        table.transaction().set_properties(owner="somebody").commit_transaction()
    elif what == "type":
        _change_type(table, "amount")
    elif current is None:
        return
    elif what == "tag":
        if "kept" not in table.metadata.refs:
            table.manage_snapshots().create_tag(current.snapshot_id, "kept").commit()
    elif what == "compaction":
        table.overwrite(table.scan().to_arrow().sort_by("offset"))
    else:
        held = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in held]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()


def _change_type(table: Any, column: str) -> None:
    """Somebody makes a column of numbers one of dates: a message that has one does not fit any more."""
    names = table.schema().column_names
    if column in names and not isinstance(table.schema().find_field(column).field_type, DateType):
        with table.update_schema(allow_incompatible_changes=True) as update:
            update.delete_column(column)
        with table.refresh().update_schema() as update:
            update.add_column(column, DateType())


@pytest.mark.deep
class TestSchedules(Schedules.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(
        deadline=None, max_examples=10, stateful_step_count=25, suppress_health_check=list(HealthCheck),
        print_blob=True, phases=set(Phase) - {Phase.shrink, Phase.explain},  # which would take minutes
    )  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(3600)
class TestManySchedules(Schedules.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(
        deadline=None, max_examples=300, stateful_step_count=40, suppress_health_check=list(HealthCheck),
        print_blob=True,
    )  # fmt: skip
