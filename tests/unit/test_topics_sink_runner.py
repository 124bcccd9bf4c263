"""How long messages wait, as a lane tells whoever cares for its tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from frazil.errors import UnavailableError
from frazil.topics.sinks.sink_runner import SinkRunner


class Engine:
    """One whose batch has taken all below an offset, after the oldest message had waited for a while."""

    topic, lag_s = "orders", 1.2
    sink = SimpleNamespace(name="archive", tables=lambda topic: [f"topics.{topic}"])

    def __init__(self) -> None:
        self.offset = 10

    def has_reached(self, end: int) -> bool:
        return self.offset >= end


def seen(end: int) -> Any:
    return SimpleNamespace(end=end, written=end)


def test_nothing_waits_after_a_batch_that_took_all_until_something_is_seen() -> None:
    lane = SinkRunner(Engine())  # type: ignore[arg-type]
    lane.observe(seen(10))
    assert lane.lag_s() == 0.0, "what the last batch waited is over"
    lane.observe(seen(12))
    assert lane.lag_s() == 1.2, "how long is not known before the next look; rather too long than too short"


def test_who_catches_up_is_behind_all_the_time() -> None:
    lane = SinkRunner(Engine())  # type: ignore[arg-type]
    lane._end = 1000
    assert lane.lag_s() == 1.2


def test_a_lane_goes_on_however_long_an_outage_lasts(monkeypatch: Any) -> None:
    def fail(**_: Any) -> None:
        raise UnavailableError("the catalog is away")

    engine = Engine()
    lane = SinkRunner(engine)  # type: ignore[arg-type]
    monkeypatch.setattr(engine, "run_batch", fail, raising=False)
    lane.failures = 5_000
    lane.run_batch()
    assert lane.failures == 5_001
    assert 14.0 < lane.pause() <= 30.0
