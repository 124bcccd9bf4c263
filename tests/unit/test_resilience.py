"""Patience with servers, on a clock that the test turns."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from frazil.errors import CircuitOpenError, ConflictError, NotFoundError, UnavailableError
from frazil.observe import metrics
from frazil.observe.resilience import CircuitBreaker, breaker_for, retry
from frazil.settings.model import NetworkSettings


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def failing(times: int, error: Exception, *, clock: Clock | None = None, takes: float = 0) -> Callable[[], int]:
    """Fails so many times, then returns the number of calls."""
    calls = 0

    def call() -> int:
        nonlocal calls
        calls += 1
        if clock:
            clock.now += takes
        if calls <= times:
            raise error
        return calls

    return call


AWAY = UnavailableError("away")


def value(metric: str, /, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(metric, labels) or 0.0


# Trying again


def test_what_is_away_for_a_moment_is_asked_again(clock: Clock) -> None:
    before = value("frazil_retries_total", operation="test.again")
    result = retry(failing(2, AWAY), NetworkSettings(), operation="test.again", clock=clock, sleep=clock.sleep)
    assert result == 3
    assert value("frazil_retries_total", operation="test.again") == before + 2


def test_tries_end_with_the_last_error(clock: Clock) -> None:
    with pytest.raises(UnavailableError, match="away"):
        retry(failing(4, AWAY), NetworkSettings(), operation="test", clock=clock, sleep=clock.sleep)
    assert len(clock.pauses) == 3


@pytest.mark.parametrize("error", [NotFoundError("no"), ConflictError("no"), CircuitOpenError("no"), ValueError("no")])
def test_what_another_try_cannot_mend_is_told_at_once(clock: Clock, error: Exception) -> None:
    with pytest.raises(type(error)):
        retry(failing(1, error), NetworkSettings(), operation="test", clock=clock, sleep=clock.sleep)
    assert clock.pauses == []


def test_no_try_begins_after_the_time_is_up(clock: Clock) -> None:
    network = NetworkSettings(retry_attempts=100, retry_timeout=7)
    start = clock.now
    with pytest.raises(UnavailableError):
        retry(failing(100, AWAY, clock=clock, takes=3), network, operation="test", clock=clock, sleep=clock.sleep)
    assert 6 < clock.now - start < 7 + 3


def test_pauses_grow_and_differ_between_clients() -> None:
    seen = []
    for _ in range(20):
        clock = Clock()
        network = NetworkSettings(retry_attempts=8, retry_timeout=1000)
        retry(failing(7, AWAY), network, operation="test", clock=clock, sleep=clock.sleep)
        seen.append(clock.pauses)
    for pauses in seen:
        assert all(
            longest / 2 <= pause <= longest
            for pause, longest in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2], strict=True)
        )
    assert len({pauses[3] for pauses in seen}) > 10


# The breaker


@pytest.fixture
def breaker(clock: Clock, request: pytest.FixtureRequest) -> CircuitBreaker:
    return CircuitBreaker(request.node.name, failures=3, reset=30, clock=clock)


def fail(breaker: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        with pytest.raises(UnavailableError):
            breaker.call(failing(1, AWAY))


def test_failures_in_a_row_open_the_breaker_and_then_nobody_is_asked(breaker: CircuitBreaker) -> None:
    fail(breaker, 3)
    assert breaker.state == "open"
    asked = False

    def ask() -> None:
        nonlocal asked
        asked = True

    with pytest.raises(CircuitOpenError, match="3 times in a row") as caught:
        breaker.call(ask)
    assert not asked
    assert "30 s" in (caught.value.hint or "")


def test_an_answer_in_between_starts_the_count_again(breaker: CircuitBreaker) -> None:
    fail(breaker, 2)
    with pytest.raises(NotFoundError):
        breaker.call(failing(1, NotFoundError("an answer too")))
    fail(breaker, 2)
    assert breaker.state == "closed"


def test_after_a_while_one_probe_that_succeeds_closes_it(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 30
    assert breaker.call(lambda: breaker.state) == "half-open"
    assert breaker.state == "closed"


def test_a_probe_that_fails_opens_it_for_another_while(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 30
    fail(breaker, 1)
    assert breaker.state == "open"
    clock.now += 29
    with pytest.raises(CircuitOpenError):
        breaker.call(lambda: None)


def test_only_one_of_many_threads_is_the_probe(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 30
    probing, finish = threading.Event(), threading.Event()

    def slow() -> None:
        probing.set()
        finish.wait(60)

    probe = threading.Thread(target=breaker.call, args=[slow])
    probe.start()
    assert probing.wait(30)
    for _ in range(5):
        with pytest.raises(CircuitOpenError):
            breaker.call(lambda: None)
    finish.set()
    probe.join()
    assert breaker.state == "closed"


def test_an_interrupted_probe_makes_room_for_the_next(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 30

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        breaker.call(interrupted)
    assert breaker.call(lambda: "answer") == "answer"


def test_work_that_asks_the_server_elsewhere_waits_and_then_tries_without_shutting_others_out(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    for _ in range(3):
        breaker.check()
        breaker.failed()
    with pytest.raises(CircuitOpenError, match="3 times in a row"):
        breaker.check()
    clock.now += 30
    breaker.check()
    breaker.failed()
    with pytest.raises(CircuitOpenError, match="4 times in a row"):
        breaker.check()
    clock.now += 30
    breaker.check()
    assert breaker.call(lambda: "answer") == "answer", "the work itself may ask the server on its way"
    breaker.check()
    assert breaker.state == "closed"


def test_metrics_show_the_breaker(breaker: CircuitBreaker, clock: Clock) -> None:
    state, opened = "frazil_breaker_state", "frazil_breaker_opened_total"
    assert value(state, name=breaker.name) == 0
    fail(breaker, 3)
    assert (value(state, name=breaker.name), value(opened, name=breaker.name)) == (2, 1)
    clock.now += 30
    assert breaker.call(lambda: value(state, name=breaker.name)) == 1
    assert value(state, name=breaker.name) == 0
    assert value(opened, name=breaker.name) == 1


def test_all_who_talk_to_a_server_share_its_breaker() -> None:
    network = NetworkSettings()
    assert breaker_for("http://a", network) is breaker_for("http://a", network)
    assert breaker_for("http://a", network) is not breaker_for("http://b", network)


# Metrics


def test_every_metric_has_a_name_of_ours_and_a_description() -> None:
    described = {metric.name: metric for metric in metrics.describe()}
    assert described["frazil_retries_total"].labels == ("operation",)
    assert described["frazil_breaker_state"].kind == "gauge"
    assert described["frazil_breaker_opened_total"].labels == ("name",)
    for metric in described.values():
        assert metric.name.startswith("frazil_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help


def test_no_metric_of_the_registry_escapes_the_description() -> None:
    exposed = {family.name + "_total" * (family.type == "counter") for family in metrics.REGISTRY.collect()}
    assert exposed == {metric.name for metric in metrics.describe()}
