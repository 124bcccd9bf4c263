"""How long messages wait, as a lane tells whoever cares for its tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from frazil.topics.sinks.lane import Lane


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
    lane = Lane(Engine())  # type: ignore[arg-type]
    lane.see(seen(10))
    assert lane.lag_s() == 0.0, "what the last batch waited is over"
    lane.see(seen(12))
    assert lane.lag_s() == 1.2, "how long is not known before the next look; rather too long than too short"


def test_who_catches_up_is_behind_all_the_time() -> None:
    lane = Lane(Engine())  # type: ignore[arg-type]
    lane._end = 1000
    assert lane.lag_s() == 1.2
