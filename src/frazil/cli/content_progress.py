"""What a scan is at, as lines on standard error for people."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from frazil.content.scan.state import ScanCounts

Listed = Callable[["ScanCounts", int], None]
#: Objects that were looked into, and all that are to be.
Looked = Callable[[int, int], None]


class Phases:
    """The phases of a scan, each a line of its own while it lasts; without a terminal nothing is shown."""

    def __init__(self, shown: Progress | None) -> None:
        self._shown = shown

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        if self._shown is None:
            yield
            return
        task = self._shown.add_task(text, total=None)
        yield
        self._shown.remove_task(task)

    @contextmanager
    def listing(self) -> Iterator[Listed | None]:
        if self._shown is None:
            yield None
            return
        shown, task = self._shown, self._shown.add_task("listing", total=None)

        def progress(tally: ScanCounts, left: int) -> None:
            news = tally.new + tally.changed
            shown.update(
                task,
                description=f"listing: {tally.objects:,} seen, {news:,} of them new or changed, {left:,} parts left",
            )

        yield progress
        shown.remove_task(task)

    @contextmanager
    def looking_inside(self) -> Iterator[Looked | None]:
        if self._shown is None:
            yield None
            return
        shown, task = self._shown, self._shown.add_task("extracting", total=None)

        def progress(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total, description=f"extracting: {done:,} of {total:,}")

        yield progress
        shown.remove_task(task)


@contextmanager
def phases(json_output: bool) -> Iterator[Phases]:
    if json_output or not sys.stderr.isatty():
        yield Phases(None)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(TextColumn):
        def render(self, task: Task) -> Text:
            known = task.total is not None and task.speed
            return Text(f"{task.speed:,.0f}/s" if known else "")

    class Bar(BarColumn):
        """Only where the end is known."""

        def render(self, task: Task) -> object:  # type: ignore[override]
            return super().render(task) if task.total is not None else Text("")

    class Remaining(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            if task.total is None:
                return Text("")
            return Text.assemble(super().render(task), " left")

    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), Bar(bar_width=20), Rate(""), TimeElapsedColumn(),
        Remaining(compact=True),
    )  # fmt: skip
    # It goes away at the end, where the summary says it all.
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield Phases(shown)
