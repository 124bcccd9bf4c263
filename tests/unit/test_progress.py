"""Progress of long work: counts, the rate of the last seconds, and when it will be over."""

from __future__ import annotations

from frazil.observe.progress import Progress, ProgressState


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rate_and_end_are_those_of_the_last_seconds() -> None:
    clock, seen = Clock(), []
    progress = Progress(seen.append, interval_s=1.0, clock=clock)
    progress.begin("copy", "ns.t", files=100, bytes=10_000)
    for _ in range(10):
        clock.now += 1
        progress.advance(1, 100)
    assert len(seen) == 10
    last: ProgressState = seen[-1]
    assert (last.files, last.bytes, round(last.rate), round(last.eta_s or 0)) == (10, 1000, 100, 90)
    for _ in range(60):
        clock.now += 1
        progress.advance(1, 50)
    assert round(seen[-1].rate) == 50, "what was fast once does not count for ever"
    progress.end()
    assert seen[-1].is_last
    assert seen[-1].eta_s == 0


def test_many_small_files_are_slow_for_their_bytes() -> None:
    clock = Clock()
    progress = Progress(clock=clock)
    progress.begin("copy", files=1000, bytes=1000)
    clock.now += 10
    progress.advance(100, 900)
    assert round(progress.state().eta_s or 0) == 90


def test_no_end_is_told_before_anything_is_done() -> None:
    progress = Progress(clock=Clock())
    progress.begin("copy", files=10)
    assert progress.state().eta_s is None


def test_totals_are_never_less_than_what_is_done() -> None:
    progress = Progress(clock=Clock())
    progress.begin("copy", files=1)
    progress.advance(5, 50)
    state = progress.state()
    assert (state.total_files, state.total_bytes) == (5, 50)
    assert state.to_dict()["files"] == 5
