"""Timing, side by side: the thing and what it is held against take turns, so that noise hits both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    what: str
    measured: str
    against: str = ""
    ratio: str = ""
    target: str = ""

    def __post_init__(self) -> None:
        parts = [self.measured, self.against and f"against {self.against}", self.ratio, self.target]
        print(f"  {self.what}: {'; '.join(part for part in parts if part)}", flush=True)


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def in_turns(rounds: int, *actions: Callable[[], object]) -> list[float]:
    """The median seconds of each action over the rounds."""
    taken: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds):
        for times, action in zip(taken, actions, strict=True):
            times.append(seconds(action))
    return [statistics.median(times) for times in taken]


def shown(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
