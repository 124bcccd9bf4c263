"""Where chapters show what they do: as text with timings, or collected for JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol


class Screen(Protocol):
    """What a stage needs of a terminal."""

    def heading(self, text: str) -> None: ...
    def step(self, text: str, seconds: float) -> None: ...
    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None: ...
    def say(self, text: str) -> None: ...


@dataclass
class Stage:
    screen: Screen
    steps: list[dict[str, Any]] = field(default_factory=list)

    def chapter(self, title: str) -> None:
        self.screen.heading(title)
        self.steps.append({"chapter": title})

    @contextmanager
    def step(self, text: str) -> Iterator[dict[str, Any]]:
        """Times a step; what it puts into the yielded record is kept with it."""
        record: dict[str, Any] = {"step": text}
        began = time.perf_counter()
        yield record
        record["seconds"] = round(time.perf_counter() - began, 3)
        self.steps.append(record)
        self.screen.step(text, record["seconds"])

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.steps.append({"columns": list(columns), "rows": [list(row) for row in rows]})
        self.screen.table(columns, rows)

    def say(self, text: str) -> None:
        self.screen.say(text)
