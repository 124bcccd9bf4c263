"""Progress of long work on standard error: a bar on a terminal, JSON lines with `--output json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from frazil.cli.invocation import Run

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

    from frazil.observe.progress import Progress, ProgressState

#: Seconds between two lines of JSON.
_LINES_S = 1.0


@contextmanager
def shown_progress(run: Run) -> Iterator[Progress]:
    """Yields what the work counts with."""
    from frazil.observe.progress import Progress

    if run.printer.json_output:
        yield Progress(_print_line, interval_s=_LINES_S)
    elif sys.stderr.isatty():
        with _open_bars() as bars:
            yield Progress(_Bar(bars).show, interval_s=0.1)
    else:
        yield Progress()


def _print_line(state: ProgressState) -> None:
    print(json.dumps({"event": "progress", **state.to_dict()}), file=sys.stderr, flush=True)


class _Bar:
    """One line, which shows the stage under way."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task = bars.add_task("", total=None, visible=False, amounts="")

    def show(self, state: ProgressState) -> None:
        text = f"{state.stage} {state.subject}".strip()
        self._bars.update(
            self._task,
            visible=not state.is_last,
            description=text,
            completed=state.bytes if state.total_bytes else state.files,
            total=state.total_bytes or state.total_files or None,
            amounts=_amounts(state),
        )


def _amounts(state: ProgressState) -> str:
    """`120 of 2,000 files, 93.4 MiB of 2.0 GiB, 210 MiB/s, 9 s left`."""
    from frazil.upkeep.plans.format_amounts import format_age, format_count, format_size

    shown = []
    if state.total_files:
        shown.append(f"{state.files:,} of {format_count(state.total_files, 'file')}")
    if state.total_bytes:
        shown.append(f"{format_size(state.bytes)} of {format_size(state.total_bytes)}")
        shown.append(f"{format_size(state.rate)}/s")
    if state.eta_s is not None and state.total_files:
        shown.append(f"{format_age(state.eta_s)} left")
    return ", ".join(shown)


def _open_bars() -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[amounts]}", markup=False),
    )
    return Bars(*columns, console=Console(stderr=True), transient=True)
