"""A pipeline that is told to stop does so in bounded time, whatever hangs, and says what it has not taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from frazil.errors import InterruptedByUser, PartialError, UnavailableError
from frazil.observe.faultpoints import handled
from frazil.topics.sinks.jobs import in_process
from frazil.topics.sinks.pipeline import Pipeline
from tests.sink_kit import SinkKit, sink_kit

pytestmark = pytest.mark.timeout(180)

#: Bytes of a message that fills a batch of the smallest size.
LARGE = 8 * 1024 * 1024


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[SinkKit]:
    with sink_kit(tmp_path, **{"pipeline.max_lag_ms": "0"}) as made:
        made.create("orders")
        yield made


def pipeline_of(kit: SinkKit, access: Any = None, **options: Any) -> Pipeline:
    return Pipeline(kit.settings, access or kit.client, None, kit.client.address, **{"run": in_process, **options})


class Hanging:
    """A client whose calls of some methods do not return before they are let go."""

    def __init__(self, kit: SinkKit) -> None:
        self._client = kit.client
        self.methods: set[str] = set()
        self.called, self.let_go = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        if name not in self.methods:
            return getattr(self._client, name)

        def hang(*_args: Any, **_more: Any) -> Any:
            self.called.set()
            self.let_go.wait()
            raise UnavailableError("it was away")

        return hang


@pytest.mark.parametrize("method", ["topics", "sync", "spans", "info"])
def test_a_broker_that_hangs(kit: SinkKit, method: str) -> None:
    kit.publish("orders", b"a")
    hanging, stop = Hanging(kit), threading.Event()
    hanging.methods.add(method)
    try:
        with pipeline_of(kit, hanging) as pipeline, ThreadPoolExecutor() as pool:
            running = pool.submit(pipeline.run, stop, grace_s=1)
            assert hanging.called.wait(20)
            began = time.monotonic()
            stop.set()
            left = running.result()
            assert time.monotonic() - began < 30, "not after the 45 seconds of the settings"
        assert isinstance(left, PartialError)
        assert left.exit_code == 3
        assert pipeline.hangs
    finally:
        hanging.let_go.set()


def test_what_was_left_is_told_with_how_far_it_came(kit: SinkKit) -> None:
    kit.publish("orders", b"a", b"b")
    hanging, stop = Hanging(kit), threading.Event()
    try:
        with pipeline_of(kit, hanging) as pipeline, ThreadPoolExecutor() as pool:
            seen: list[Any] = []
            running = pool.submit(pipeline.run, stop, ready=seen.append, grace_s=1)
            while not any(s.offset == 2 for s in pipeline.status()):
                time.sleep(0.01)
            hanging.methods.add("spans")
            kit.publish("orders", b"c")
            assert hanging.called.wait(20)
            stop.set()
            left = running.result()
        assert left is not None
        assert "orders (offset 2 of 3; 2 rows taken)" in left.message
        [topic] = left.to_dict()["topics"]
        assert (topic["topic"], topic["offset"], topic["end"], topic["rows"]) == ("orders", 2, 3, 2)
        assert len(seen) == 1
    finally:
        hanging.let_go.set()
    with pipeline_of(kit) as pipeline:
        pipeline.drain()
    kit.check("orders")


def test_nothing_is_left_where_all_was_taken(kit: SinkKit) -> None:
    stop = threading.Event()
    with pipeline_of(kit) as pipeline, ThreadPoolExecutor() as pool:
        running = pool.submit(pipeline.run, stop)
        kit.publish("orders", b"a")
        stop.set()
        assert running.result() is None
    assert not pipeline.hangs
    kit.check("orders")


def test_it_is_ready_when_every_topic_was_looked_at_also_one_that_fails(kit: SinkKit) -> None:
    kit.create("other")
    ready, stop = threading.Event(), threading.Event()
    seen: list[Any] = []

    def fail(step: str) -> None:
        if step == "sink.look.before":
            raise OSError("no")

    def note(statuses: Any) -> None:
        seen.extend(statuses)
        ready.set()

    with handled(fail), pipeline_of(kit) as pipeline, ThreadPoolExecutor() as pool:
        running = pool.submit(pipeline.run, stop, ready=note, grace_s=0)
        assert ready.wait(20)
        stop.set()
        running.result()
    assert {s.topic: s.state for s in seen} == {"orders": "waiting", "other": "waiting"}


def test_it_is_not_ready_while_a_topic_was_not_looked_at(kit: SinkKit) -> None:
    hanging, stop = Hanging(kit), threading.Event()
    hanging.methods.add("sync")
    seen: list[Any] = []
    try:
        with pipeline_of(kit, hanging) as pipeline, ThreadPoolExecutor() as pool:
            running = pool.submit(pipeline.run, stop, ready=seen.append, grace_s=0)
            assert hanging.called.wait(20)
            time.sleep(0.3)
            stop.set()
            running.result()
        assert seen == []
    finally:
        hanging.let_go.set()


def test_a_drain_stops_after_the_batch_that_runs(kit: SinkKit) -> None:
    stop = threading.Event()
    for payload in (b"a", b"b", b"c"):
        kit.publish("orders", payload * LARGE)

    def one_then_stop(work: Any, spans: Any) -> Any:
        stop.set()
        return in_process(work, spans)

    small = kit.settings.model.pipeline.model_copy(update={"target_bytes": 1})
    kit.settings = type(kit.settings)(kit.settings.model.model_copy(update={"pipeline": small}))
    with pipeline_of(kit, run=one_then_stop) as pipeline, pytest.raises(InterruptedByUser) as raised:
        pipeline.drain(stop=stop)
    [topic] = raised.value.to_dict()["topics"]
    assert (topic["offset"], topic["rows"], topic["end"]) == (1, 1, 3)


def test_a_drain_that_fails_in_the_middle_says_what_is_in_the_table(kit: SinkKit) -> None:
    for payload in (b"a", b"b"):
        kit.publish("orders", payload * LARGE)
    small = kit.settings.model.pipeline.model_copy(update={"target_bytes": 1})
    kit.settings = type(kit.settings)(kit.settings.model.model_copy(update={"pipeline": small}))
    taken = 0

    def failing(work: Any, spans: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken > 1:
            raise UnavailableError("Spark is tired")
        return in_process(work, spans)

    with pipeline_of(kit, run=failing) as pipeline, pytest.raises(UnavailableError, match="Spark is tired") as raised:
        pipeline.drain()
    assert "orders (offset 1 of 2; 1 rows taken)" in raised.value.message
    [topic] = raised.value.to_dict()["topics"]
    assert (topic["offset"], topic["rows"], topic["end"]) == (1, 1, 2)
