"""Random schedules of everything that can happen to a topic, against an oracle in plain Python."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from frazil.errors import UnavailableError
from frazil.log import Ack, Batch, Level, Log
from frazil.log.files import LogShutError
from frazil.log.protocol import Registration
from tests.faulty_disk import FaultyDisk
from tests.log_kit import crash, messages_of, new_log, open_log

SIZES = st.sampled_from([0, 1, 7, 100, 1500, 3900])


class Schedules(RuleBasedStateMachine):
    """What the oracle knows: each acknowledged message, and how far a reader has ever seen."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="frazil-schedule-"))
        self.disk = FaultyDisk(self.folder)
        self.log: Log = new_log(self.folder / "log", disk=self.disk)
        self.log.configure("orders", {"sinks": ["content"]})
        self.acked: dict[int, bytes] = {}
        self.in_memory: set[bytes] = set()
        self.seen: dict[int, bytes] = {}
        self.start = 0
        self.committed = 0
        self.subscriptions: dict[str, int] = {}
        self.producer: Registration = self.log.register("orders", "billing")
        self.batches: list[tuple[int, Ack]] = []
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "log"):
            crash(self.log)
            shutil.rmtree(self.folder, ignore_errors=True)

    def payload(self, size: int) -> bytes:
        self.number += 1
        return b"%d:" % self.number + b"." * size

    # -- what people do ----------------------------------------------------------------------------------------------

    @rule(size=SIZES, level=st.sampled_from([Level.os, Level.disk]))
    def publish(self, size: int, level: Level) -> None:
        payload = self.payload(size)
        self.note(self.log.publish("orders", payload, level=level), payload)

    @rule(size=SIZES)
    def publish_in_memory(self, size: int) -> None:
        payload = self.payload(size)
        self.in_memory.add(payload)
        assert self.log.publish("orders", payload, level="memory").offset == -1

    @rule(size=SIZES, level=st.sampled_from([Level.os, Level.disk]))
    def send_batch(self, size: int, level: Level) -> None:
        ack = self.log.append("orders", self.batch(len(self.batches), size), level)
        assert not ack.duplicate
        self.note(ack, b"batch %d" % len(self.batches) + b"." * size)
        self.batches.append((size, ack))

    @precondition(lambda self: self.batches)
    @rule(chance=st.randoms(use_true_random=False), level=st.sampled_from([Level.os, Level.disk]))
    def send_again(self, chance: random.Random, level: Level) -> None:
        sequence = chance.randrange(max(0, len(self.batches) - 60), len(self.batches))
        size, first = self.batches[sequence]
        again = self.log.append("orders", self.batch(sequence, size), level)
        assert again == first._replace(duplicate=True, level=level)

    @rule()
    def sync(self) -> None:
        assert self.log.sync("orders") == self.log.info("orders").written
        assert set(messages_of(self.log).values()) >= self.in_memory - self.gone()

    def gone(self) -> set[bytes]:
        """What retention has removed of those of which nobody was told the offset."""
        return {p for p in self.in_memory if any(o < self.start and q == p for o, q in self.seen.items())}

    @rule(position=st.integers(0, 50), name=st.sampled_from(["a", "b"]))
    def commit_position(self, position: int, name: str) -> None:
        self.log.commit("orders", name, position)
        self.subscriptions[name] = position

    @rule(part=st.floats(0, 1))
    def sink_commits(self, part: float) -> None:
        end = self.log.info("orders").end
        self.committed = max(self.committed, self.start + int((end - self.start) * part))
        self.log.report("orders", "content", self.committed)

    @rule(size=st.sampled_from([0, 5000, 20_000]))
    def retain(self, size: int) -> None:
        kept = self.log.retain("orders", size=size)
        assert self.start <= kept.start <= max(self.committed, self.start)
        self.start = kept.start

    @rule(space=st.integers(0, 300), size=SIZES)
    def disk_is_full(self, space: int, size: int) -> None:
        """What waits in memory may be refused with it; nobody was promised more."""
        self.disk.space = space
        payload = self.payload(size + 300)
        with pytest.raises(UnavailableError):
            self.log.publish("orders", payload)
        self.disk.repair()
        written = set(self.seen.values()) | set(self.acked.values())
        self.in_memory &= written | set(self.everything().values())

    def everything(self) -> dict[int, bytes]:
        self.log.sync("orders")
        return messages_of(self.log)

    # -- what happens to them ----------------------------------------------------------------------------------------

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        self.reopen()
        assert set(messages_of(self.log).values()) >= self.in_memory - self.gone()

    @rule()
    def process_dies(self) -> None:
        written = self.log.info("orders").written
        crash(self.log)
        self.reopen()
        assert self.log.info("orders").end >= written
        self.in_memory &= set(messages_of(self.log).values()) | self.gone()

    @rule(chance=st.none() | st.randoms(use_true_random=False))
    def power_is_cut(self, chance: random.Random | None) -> None:
        safe = {o: p for o, p in self.acked.items() if o in self.seen}
        crash(self.log)
        self.disk.power_loss(chance)
        self.reopen()
        end = self.log.info("orders").end
        self.acked = {o: p for o, p in self.acked.items() if o < end}
        assert safe.items() <= self.acked.items()
        self.batches = [(s, a) for s, a in self.batches if a.offset < end]
        self.in_memory &= set(messages_of(self.log).values()) | self.gone()

    @rule()
    def sync_fails(self) -> None:
        self.disk.fail("sync", match=".seg")
        payload = self.payload(1)
        with pytest.raises(LogShutError):
            self.log.publish("orders", payload)
        self.disk.repair()
        assert messages_of(self.log).items() >= {o: p for o, p in self.seen.items() if o >= self.start}.items()
        self.log.close()
        self.reopen()
        self.in_memory |= {payload}  # nobody was told whether it is there
        self.in_memory &= set(messages_of(self.log).values()) | self.gone()

    def reopen(self) -> None:
        self.log = open_log(self.folder / "log", disk=self.disk)
        self.log.report("orders", "content", self.committed)
        assert self.log.info("orders").start >= self.start
        self.start = self.log.info("orders").start

    # -- what is always so -------------------------------------------------------------------------------------------

    @invariant()
    def what_is_visible_is_right_complete_and_stays(self) -> None:
        if not hasattr(self, "log"):
            return
        info = self.log.info("orders")
        read = messages_of(self.log)
        # Not every offset has a message: a log that begins anew skips some.
        assert set(read) <= set(range(info.start, info.end))
        assert {o for o in self.acked if info.start <= o < info.end} <= set(read), "no gap"
        assert read.items() >= {o: p for o, p in self.seen.items() if o >= info.start}.items(), "what was seen stays"
        for offset, payload in read.items():
            assert self.acked.get(offset, payload) == payload
            assert offset in self.acked or payload in self.in_memory, "nobody wrote that"
        unacked = [p for o, p in read.items() if o not in self.acked]
        assert len(unacked) == len(set(unacked))
        assert info.subscriptions == self.subscriptions
        self.seen |= read

    def note(self, ack: Ack, payload: bytes) -> None:
        for offset in range(ack.offset, ack.offset + ack.count):
            assert offset not in self.acked, "an offset was given out twice"
            assert offset not in self.seen
            self.acked[offset] = payload
        if ack.level is Level.disk:
            assert self.log.info("orders").end >= ack.offset + ack.count

    def batch(self, sequence: int, size: int) -> Batch:
        payload = b"batch %d" % sequence + b"." * size
        return Batch.of_messages([payload] * 2, producer_id=self.producer.producer_id, sequence=sequence)


class TestSchedules(Schedules.TestCase):
    settings = settings(
        deadline=None, max_examples=25, stateful_step_count=30, suppress_health_check=list(HealthCheck),
        print_blob=True,
    )  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(3600)
class TestManySchedules(Schedules.TestCase):
    settings = settings(
        deadline=None, max_examples=1500, stateful_step_count=60, suppress_health_check=list(HealthCheck),
        print_blob=True,
    )  # fmt: skip
