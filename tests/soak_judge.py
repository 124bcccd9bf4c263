"""Judges a soak: whether what was measured in its last tenth is still about what it was in its second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: What may grow so many times, as issue 5 says.
MOST = 1.2
#: A machine that got slower excuses times that got as much longer, and never more than so many times.
EXCUSED = 1.25
#: Counts go up and down all the time: files until ten of them are merged, of which half is chance; snapshots by one.
_SWING = {"files": 5, "snapshots": 1}
_YARDSTICK = "usual "


@dataclass
class Steal:
    """The part of the processor's time that other guests of the same host took lately. Zero where nobody tells."""

    share: float = 0.0
    _before: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def now(self) -> float:
        at = time.monotonic()
        if at - self._before[0] >= 1.0:
            ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
            total, stolen = float(sum(ticks)), float(ticks[7])
            if self._before[0] and total > self._before[1]:
                self.share = (stolen - self._before[2]) / (total - self._before[1])
            self._before = (at, total, stolen)
        return self.share


@dataclass
class Samples:
    """Numbers over time, by name, each with the share of the processor that others took just then."""

    began: float = field(default_factory=time.monotonic)
    found: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    steal: Steal = field(default_factory=Steal)

    def add(self, name: str, value: float, usual: float | None = None) -> None:
        """One number; a time with its yardstick: what a piece of like work that never changes took just before."""
        at, steal = time.monotonic() - self.began, self.steal.now()
        self.found.setdefault(name, []).append((at, value, steal))
        if usual is not None:
            self.found.setdefault(_YARDSTICK + name, []).append((at, usual, steal))

    def values(self, name: str) -> list[float]:
        return [value for _, value, _ in self.found[name]]

    def tenth(self, name: str, number: int, seconds: float) -> float:
        """The median of one tenth of the time, 0 to 9; of those moments alone in which the machine was ours most."""
        of = [(value, steal) for at, value, steal in self.found[name] if number <= at / seconds * 10 < number + 1]
        calm = statistics.median(steal for _, steal in of)
        return statistics.median(value for value, steal in of if steal <= calm)

    def tenths(self, seconds: float) -> dict[str, list[float]]:
        return {name: [self.tenth(name, i, seconds) for i in range(10)] for name in sorted(self.found)}

    def last(self, name: str) -> float:
        return self.found[name][-1][1]


def slower(tenths: Mapping[str, Sequence[float]], name: str) -> float:
    """How many times as long the yardstick of a time took in the end; 1 for what has none, or if it took less."""
    usual = tenths.get(_YARDSTICK + name)
    return max(1.0, usual[9] / usual[1]) if usual else 1.0


def excused(tenths: Mapping[str, Sequence[float]], name: str) -> float:
    """How many times as long a time may be for that."""
    return min(EXCUSED, slower(tenths, name))


def grown(tenths: Mapping[str, Sequence[float]]) -> list[str]:
    """What was more in the last tenth than it may be, by what it was in the second; a sentence for each."""
    found = []
    for name, values in tenths.items():
        if name.startswith(_YARDSTICK) or name == "lag seconds":
            continue
        allowed = excused(tenths, name)
        most = MOST * allowed * values[1] + _SWING.get(name.rpartition(" ")[2], 0)
        if values[9] > most:
            found.append(
                f"{name}: {values[1]:.4g}, then {values[9]:.4g}, more than {most:.4g}"
                f" (yardstick {slower(tenths, name):.2f}×, of which {allowed:.2f}× are excused)"
            )
    return found
