"""Pauses between attempts: longer each time, up to a maximum, and not the same for all."""

from __future__ import annotations

from frazil.observe.backoff import Backoff


def test_pauses_double_up_to_the_longest():
    backoff = Backoff(first=0.5, longest=3.0, jitter=0.0)
    assert [backoff.pause(failures) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_jitter_takes_away_at_most_its_share():
    backoff = Backoff(first=1.0, longest=8.0, jitter=0.25)
    pauses = [backoff.pause(3) for _ in range(200)]
    assert all(3.0 <= pause <= 4.0 for pause in pauses)
    assert len(set(pauses)) > 100, "clients that failed together return at different times"


def test_an_outage_may_last_any_number_of_attempts():
    backoff = Backoff(first=0.2, longest=30.0, jitter=0.0)
    assert backoff.pause(1_000_000) == 30.0
