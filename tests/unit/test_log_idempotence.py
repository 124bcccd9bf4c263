"""Producers that retry: every batch once, whatever happens between the first try and the last."""

from __future__ import annotations

import asyncio
import errno
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.errors import FrazilError, UnavailableError
from frazil.log import Ack, Batch, Level, Log
from frazil.log import producers as producers_module
from frazil.log.producers import (
    REMEMBERED,
    FencedError,
    OutOfSequenceError,
    PreviousEpoch,
    Producer,
    UnknownProducerError,
)
from frazil.log.protocol import Registration
from frazil.observe.faultpoints import handled
from tests.faulty_disk import FaultyDisk
from tests.log_kit import crash, messages_of, new_log, open_log

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(tmp_path)


@pytest.fixture
def log(tmp_path: Path, disk: FaultyDisk) -> Iterator[Log]:
    with new_log(tmp_path / "log", disk=disk) as opened:
        yield opened


def batch(who: Registration, sequence: int, size: int = 0) -> Batch:
    payload = b"batch %d " % sequence + b"." * size
    return Batch.of_messages(
        [payload, payload], producer_id=who.producer_id, producer_epoch=who.producer_epoch, sequence=sequence
    )


def same(first: Ack, retried: Ack) -> bool:
    return retried == first._replace(duplicate=True)


def test_a_retry_gets_the_first_acknowledgement_again(log: Log):
    who = log.register("orders", "billing")
    first = [log.append("orders", batch(who, i)) for i in range(5)]
    assert [a.offset for a in first] == [0, 2, 4, 6, 8]
    assert all(same(first[i], log.append("orders", batch(who, i))) for i in (4, 0, 2, 2))
    assert asyncio.run(_retry(log, batch(who, 3))) == first[3]._replace(duplicate=True)
    assert log.info("orders").end == 10


async def _retry(log: Log, given: Batch) -> Ack:
    return await log.append_async("orders", given)


def test_a_retry_is_known_after_a_crash_a_rotation_and_the_retention_of_all_it_was_in(tmp_path: Path):
    log = new_log(tmp_path / "log")
    who = log.register("orders", "billing")
    nameless = log.register("orders")
    first = log.append("orders", batch(who, 0))
    other = log.append("orders", batch(nameless, 0))
    crash(log)
    log = open_log(tmp_path / "log")
    assert same(first, log.append("orders", batch(who, 0)))
    for _ in range(5):
        log.publish("orders", bytes(3000))
    assert same(first, log.append("orders", batch(who, 0)))
    log.retain("orders", size=0)
    assert log.info("orders").start > other.offset
    assert same(first, log.append("orders", batch(who, 0)))
    log.close()
    with open_log(tmp_path / "log") as log:
        assert same(first, log.append("orders", batch(who, 0)))
        assert same(other, log.append("orders", batch(nameless, 0)))
        assert log.append("orders", batch(who, 1)).offset == 9


def test_a_retry_older_than_what_is_remembered_is_still_no_new_batch(log: Log):
    who = log.register("orders", "billing")
    for i in range(REMEMBERED + 5):
        log.append("orders", batch(who, i))
    end = log.info("orders").end
    old = log.append("orders", batch(who, 2))
    assert old.duplicate and old.offset == -1
    assert log.append("orders", batch(who, 5)).offset == 10
    assert log.info("orders").end == end


def test_a_gap_in_the_sequence_is_refused_and_says_what_is_next(log: Log):
    who = log.register("orders", "billing")
    for wrong in (1, 7):
        with pytest.raises(OutOfSequenceError) as refused:
            log.append("orders", batch(who, wrong))
        assert refused.value.expected == 0
    log.append("orders", batch(who, 0))
    with pytest.raises(OutOfSequenceError) as refused:
        log.append("orders", batch(who, 2))
    assert refused.value.expected == 1
    assert log.info("orders").end == 2


def test_a_newer_producer_of_the_same_name_fences_the_older_one_also_after_a_restart(tmp_path: Path):
    log = new_log(tmp_path / "log")
    old = log.register("orders", "billing")
    log.append("orders", batch(old, 0))
    new = log.register("orders", "billing")
    assert (new.producer_id, new.producer_epoch) == (old.producer_id, old.producer_epoch + 1)
    for _ in range(2):
        for sequence in (0, 1):
            with pytest.raises(FencedError, match="'billing' of topic 'orders' has epoch 1"):
                log.append("orders", batch(old, sequence))
        assert log.append("orders", batch(new, 0)).offset == 2
        crash(log)
        log = open_log(tmp_path / "log")
    log.close()


def test_a_producer_without_a_name_that_registers_again_by_its_id_shuts_out_what_it_sent_before(tmp_path: Path):
    with new_log(tmp_path / "log") as log:
        old, other = log.register("orders"), log.register("orders")
        log.append("orders", batch(old, 0))
        new = log.register("orders", producer_id=old.producer_id)
        assert (new.producer_id, new.producer_epoch) == (old.producer_id, old.producer_epoch + 1)
        with pytest.raises(FencedError):
            log.append("orders", batch(old, 1))
        log.append("orders", batch(new, 0))
        log.append("orders", batch(other, 0))
    with open_log(tmp_path / "log") as log:
        with pytest.raises(FencedError):
            log.append("orders", batch(old, 1))
        log.append("orders", batch(new, 1))


@pytest.mark.parametrize("name", ["billing", None])
def test_what_was_taken_under_the_epoch_before_is_told_also_after_a_crash_that_lost_the_answer(
    tmp_path: Path, name: str | None
):
    log = new_log(tmp_path / "log")
    who = log.register("orders", name)
    taken = log.append("orders", batch(who, 0))
    lost = log.register("orders", name, who.producer_id)
    for _ in range(3):  # from its change, then from the head of a later segment
        crash(log)
        log = open_log(tmp_path / "log")
        log.publish("orders", bytes(4000))
        log.publish("orders", bytes(4000))
        new = log.register("orders", name, who.producer_id)
        assert new.producer_epoch > lost.producer_epoch
        assert (new.before_epoch, new.before_last) == (who.producer_epoch, 0)
        assert new.before == [[0, taken.offset, 2, taken.time_us]]
    log.append("orders", batch(new, 0))
    crash(log)
    with open_log(tmp_path / "log") as log:
        again = log.register("orders", name, who.producer_id)
        assert (again.before_epoch, again.before_last) == (new.producer_epoch, 0)
        assert again.before[0][1] > taken.offset


def test_a_state_from_before_the_log_kept_the_epoch_before_is_read():
    producer = Producer.from_json([5, "billing", 3, 1000, 0, [[0, 7, 1, 1000]]])
    assert (producer.epoch, producer.last, producer.before) == (3, 0, PreviousEpoch())


def test_an_id_of_somebody_with_a_name_or_of_nobody_gives_a_new_producer(log: Log):
    named = log.register("orders", "shop")
    for foreign in (named.producer_id, 12345, 0):
        made = log.register("orders", producer_id=foreign)
        assert made.producer_id not in (foreign, 0)
        assert made.producer_epoch == 0
    log.append("orders", batch(named, 0))


def test_an_unknown_producer_is_told_to_register(log: Log):
    with pytest.raises(UnknownProducerError, match="does not know producer 5"):
        log.append("orders", batch(Registration(5, 0), 0))
    assert log.info("orders").end == 0


def test_the_producer_that_was_silent_for_longest_is_forgotten_first(log: Log, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(producers_module, "MAX_PRODUCERS", 3)
    known = [log.register("orders", f"p{i}") for i in range(3)]
    log.append("orders", batch(known[0], 0))
    log.register("orders", "p3")
    with pytest.raises(UnknownProducerError):
        log.append("orders", batch(known[1], 0))
    assert log.append("orders", batch(known[0], 0)).duplicate


# -- in one commit -------------------------------------------------------------------------------------------------


def together(log: Log, given: list[Batch], *, level: Level = Level.disk, before_write: object = None) -> list[object]:
    """All batches in one commit, in this order: they wait behind a commit that is held up."""
    opened = log._topic("orders")
    held, go_on = threading.Event(), threading.Event()
    outcomes: list[object] = [None] * len(given)

    def hold(step: str) -> None:
        if step == "log.sync.before" and not held.is_set():
            held.set()
            go_on.wait(20)

    def send(number: int) -> None:
        try:
            outcomes[number] = log.append("orders", given[number], level)
        except FrazilError as error:
            outcomes[number] = error

    with handled(hold):
        threads = [threading.Thread(target=log.publish, args=("orders", b"holds up"))]
        threads[0].start()
        held.wait(20)
        for number in range(len(given)):
            threads.append(threading.Thread(target=send, args=(number,)))
            threads[-1].start()
            while len(opened.queue._pending) <= number:
                pass
        if callable(before_write):
            before_write()
        go_on.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    return outcomes


def test_a_retry_in_the_same_commit_is_recognised(log: Log):
    who = log.register("orders", "billing")
    first, again, second = together(log, [batch(who, 0), batch(who, 0), batch(who, 1)])
    assert isinstance(first, Ack) and isinstance(again, Ack) and same(first, again)
    assert isinstance(second, Ack) and second.offset == first.offset + 2
    assert log.info("orders").end == 5


@pytest.mark.parametrize("level", [Level.os, Level.disk])
def test_a_retry_in_a_commit_that_fails_is_not_acknowledged_either(log: Log, disk: FaultyDisk, level: Level):
    who = log.register("orders", "billing")

    def fill() -> None:
        disk.space = 10

    outcomes = together(log, [batch(who, 0), batch(who, 0)], level=level, before_write=fill)
    assert [type(o) for o in outcomes] == [UnavailableError, UnavailableError]
    disk.repair()
    taken = log.append("orders", batch(who, 0))
    assert not taken.duplicate
    assert messages_of(log)[taken.offset] == batch_payload(0)


def batch_payload(sequence: int) -> bytes:
    return b"batch %d " % sequence


def test_a_batch_that_could_not_be_written_is_not_taken_for_one_that_was(log: Log, disk: FaultyDisk):
    who = log.register("orders", "billing")
    log.append("orders", batch(who, 0))
    disk.space = 50
    for _ in range(3):
        with pytest.raises(UnavailableError, match="cannot be written") as refused:
            log.append("orders", batch(who, 1))
        assert "No space left" in (refused.value.cause or "")
        disk.space = 0
    disk.repair()
    with pytest.raises(OutOfSequenceError):
        log.append("orders", batch(who, 2))
    again = log.append("orders", batch(who, 1))
    assert (again.offset, again.duplicate) == (2, False)
    assert log.append("orders", batch(who, 1)).duplicate


def test_a_batch_whose_predecessor_fails_at_a_rotation_in_the_same_commit_is_refused(log: Log, disk: FaultyDisk):
    """The first is drafted, the second needs a new segment, so the first is written then; that fails."""
    who = log.register("orders", "billing")
    log.publish("orders", b"x")

    def fill() -> None:
        disk.fail("write", errno.ENOSPC, times=9, match="00000000000000000000.seg")

    outcomes = together(log, [batch(who, 0, 1000), batch(who, 1, 1500)], before_write=fill)
    assert isinstance(outcomes[0], UnavailableError)
    assert isinstance(outcomes[1], OutOfSequenceError), outcomes[1]
    disk.repair()
    assert [log.append("orders", batch(who, i, 1000)).duplicate for i in (0, 1)] == [False, False]
    assert [p[:7] for p in messages_of(log).values()][-4:] == [b"batch 0"] * 2 + [b"batch 1"] * 2


def test_a_failed_write_takes_back_a_registration_a_column_and_a_subscription(log: Log, disk: FaultyDisk):
    log.publish("orders", b"x")
    log.commit("orders", "reader", 1)
    disk.space = 0
    with pytest.raises(UnavailableError):
        log.register("orders", "billing")
    with pytest.raises(UnavailableError):
        log.commit("orders", "reader", 7)
    own = Batch.of_arrow(pa.record_batch({"payload": pa.array([b"x"]), "price": pa.array([1])}))
    with pytest.raises(UnavailableError):
        log.append("orders", own)
    disk.repair()
    assert log.info("orders").subscriptions == {"reader": 1}
    assert log.info("orders").extra == pa.schema([])
    assert log.register("orders", "billing").producer_epoch == 0
    assert log.append("orders", own).offset == 1


# -- a producer that sends everything twice ------------------------------------------------------------------------

STEPS = st.lists(
    st.sampled_from(["next", "next", "retry", "retry", "older", "fail", "rotate", "crash", "retain", "reopen"]),
    min_size=1, max_size=25,
)  # fmt: skip


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.randoms(use_true_random=False))
def test_a_producer_that_sends_everything_twice_at_random_is_written_once(steps: list[str], chance: object):
    with tempfile.TemporaryDirectory() as folder:
        disk = FaultyDisk(Path(folder))
        log = new_log(Path(folder) / "log", disk=disk)
        who = log.register("orders", "billing")
        acks: list[Ack] = []
        written: dict[int, bytes] = {}
        for step in steps:
            if step == "fail":
                disk.space = chance.randint(0, 60)  # type: ignore[attr-defined]
                with pytest.raises(UnavailableError):
                    log.append("orders", batch(who, len(acks)))
                disk.repair()
            elif step == "next" or (step in ("retry", "older") and not acks):
                ack = log.append("orders", batch(who, len(acks)))
                assert not ack.duplicate
                written |= {ack.offset: batch_payload(len(acks)), ack.offset + 1: batch_payload(len(acks))}
                acks.append(ack)
            elif step in ("retry", "older"):
                number = len(acks) - 1 if step == "retry" else chance.randrange(len(acks))  # type: ignore[attr-defined]
                assert same(acks[number], log.append("orders", batch(who, number)))
            elif step == "rotate":
                ack = log.publish("orders", bytes(4000))
                written[ack.offset] = bytes(4000)
            elif step == "retain":
                log.retain("orders", size=0)
            else:
                crash(log) if step == "crash" else log.close()
                log = open_log(Path(folder) / "log", disk=disk)
        start = log.info("orders").start
        assert messages_of(log) == {o: p for o, p in written.items() if o >= start}
        log.close()
