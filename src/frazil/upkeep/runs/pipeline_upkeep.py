"""Upkeep inside a pipeline: takes turns with the sinks, for a bounded share of their time, and yields to their lag."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from frazil.catalogs import open_catalog
from frazil.errors import FrazilError, NotFoundError, first_line
from frazil.observe.logs import get_logger
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.upkeep import metrics
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.jobs import Jobs
from frazil.upkeep.model import Kind
from frazil.upkeep.plans.manifest_stats import ManifestStatsCache
from frazil.upkeep.runs.backoff import UNSUCCESSFUL, TableBackoff, double_pause, log_backoff, log_failure
from frazil.upkeep.runs.history import History
from frazil.upkeep.runs.run import Limits, Report, run_upkeep
from frazil.upkeep.runs.watchdog import Watchdog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger(__name__)

#: A sink lags when its oldest message has waited this multiple of the permitted time, and this many seconds.
_BEHIND = (5.0, 5.0)
#: While a sink lags, or the budget is spent, checks for urgent steps are less frequent by this factor.
_SLOWDOWN = 5.0
#: Minimum seconds between two turns of upkeep's own history table.
_HISTORY_EVERY_S = 600.0
#: Multiples of its intended length at which a turn is cut off; the second one while messages wait for the sink.
_CUT_OFF = (2.0, 1.5)
#: Concurrent turns: the other threads of a pipeline belong to its sinks.
_MAX_TURNS = 2
#: Assumed throughput of compaction in bytes per second before it is measured, and the least.
_FIRST_RATE, _LOWEST_RATE = 8e6, 1e6
#: The least fraction of a turn that a table gets.
_MIN_FRACTION = 0.25


@dataclass
class _TableState:
    """The schedule of a table's upkeep."""

    due: float
    """When the next turn is due."""
    pause: float = 0.0
    """Back-off of the table as a whole; doubled each time."""
    backoffs: dict[Kind, TableBackoff] = field(default_factory=dict)
    """Kinds that failed, were cut off or lost conflicts, and have not succeeded since."""
    busy: threading.Lock = field(default_factory=threading.Lock)
    known: ManifestStatsCache = field(default_factory=ManifestStatsCache)


@dataclass
class _TimeBudget:
    """Seconds that upkeep may take of a sink's time: accrued over time, spent by turns."""

    credit: float
    at: float

    def earn(self, now: float, share: float, most: float) -> float:
        self.credit = min(most, self.credit + (now - self.at) * share)
        self.at = now
        return self.credit


class PipelineUpkeep:
    """Maintains the tables of a pipeline's sinks, in their threads; implements `SinkUpkeep`.

    Args:
        context: of the catalog; its sessions are `jobs`.
        jobs: the Spark jobs of upkeep.
        history: keeps what was done.
        cores: returns the cores that Spark has now; None: upkeep may use all.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        context: UpkeepContext,
        jobs: Jobs,
        history: History,
        *,
        cores: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context, self._jobs, self._history, self._clock = context, jobs, history, clock
        self._settings = context.settings.model.upkeep
        self._wanted = context.settings.model.pipeline.max_lag_ms / 1000
        self._behind = max(_BEHIND[0] * self._wanted, _BEHIND[1])
        self._rate = _FIRST_RATE
        self._states: dict[str, _TableState] = {}
        self._budgets: dict[str, _TimeBudget] = {}
        self._lock = threading.Lock()
        self._cores = cores
        self._running = 0
        self._watches: set[Watchdog] = set()

    def run_turn(self, tables: Sequence[str], lag: Callable[[], float]) -> bool:
        changed = False
        began = self._clock()
        names = [*reversed(tables), *([self._history.name] if self._history.name else [])]
        for name in sorted(names, key=self._due):
            if changed and lag() > self._wanted:
                break  # a batch comes first; the other tables get their turn after it
            if not self._context.stop.is_set() and self._clock() - began < self._settings.turn_s:
                changed |= self._run_table_turn(name, tables[-1], lag, began)
        self._history.flush()
        return changed

    def _due(self, name: str) -> float:
        """Returns the due time, so that the table that has waited longest comes first, whatever the others' plans."""
        state = self._states.get(name)
        return -math.inf if state is None else state.due

    def stop(self) -> None:
        self._context.stop.set()
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.end()

    def _run_table_turn(self, name: str, payer: str, lag: Callable[[], float], since: float) -> bool:
        """Runs one turn of one table, paid from the budget of the sink whose time it takes."""
        now, lag_s = self._clock(), lag()
        with self._lock:
            state = self._states.get(name) or self._states.setdefault(name, _TableState(self._first(name, now)))
            share = self._budgets.setdefault(payer, _TimeBudget(self._settings.share * self._settings.every_s, now))
            credit = share.earn(now, self._settings.share, self._settings.turn_s)
        limited = lag_s > self._behind or credit <= 0
        if now < state.due + (self._settings.every_s * (_SLOWDOWN - 1) if limited else 0):
            return False
        at_once, _ = self._allot_tasks()
        with self._lock:
            if self._running >= at_once:
                return False  # retried after the next batch
            self._running += 1
        try:
            with self._watch(since, lag) as watch:
                limits = self._limits(state, lag, since, urgent_only=limited)
                return self._maintain(name, state, share, watch, limits)
        finally:
            with self._lock:
                self._running -= 1

    def _allot_tasks(self) -> tuple[int, int | None]:
        """Returns the concurrent turns and the writing tasks of each: one core is left to sinks without a turn.

        Computed each time, since executors come and go.
        """
        if self._cores is None:
            return _MAX_TURNS, None
        cores = max(1, self._cores() - 1)
        at_once = min(_MAX_TURNS, cores)
        return at_once, cores // at_once

    @contextmanager
    def _watch(self, since: float, lag: Callable[[], float]) -> Iterator[Watchdog]:
        with Watchdog(self._jobs.part(), lambda: self._find_cut_off_reason(since, lag)) as watch:
            with self._lock:
                self._watches.add(watch)
            if self._context.stop.is_set():  # `stop` may have been called before it was added
                watch.end()
            try:
                yield watch
            finally:
                with self._lock:
                    self._watches.discard(watch)

    def _find_cut_off_reason(self, since: float, lag: Callable[[], float]) -> str | None:
        """Returns why a sink cannot wait any longer; None: it can."""
        took, turn = self._clock() - since, self._settings.turn_s
        if took > _CUT_OFF[0] * turn:
            return f"it took longer than {_CUT_OFF[0] * turn:g} s"
        if took > _CUT_OFF[1] * turn and (waits := lag()) > self._behind:
            return f"it took longer than {_CUT_OFF[1] * turn:g} s, and the sink is {waits:.0f} s behind"
        return None

    def _maintain(self, name: str, state: _TableState, share: _TimeBudget, watch: Watchdog, limits: Limits) -> bool:
        if not state.busy.acquire(blocking=False):
            return False  # in a turn of another sink
        began = self._clock()
        try:
            report = self._run_steps(name, state, watch, limits)
            with self._lock:
                share.credit -= self._clock() - began
            self._schedule(name, state, report)
            if report is not None:
                self._back_off(name, state, report, watch.why)
        finally:
            state.busy.release()
        return report is not None and report.changed

    def _first(self, name: str, now: float) -> float:
        return now + (_HISTORY_EVERY_S if name == self._history.name else 0)

    def _limits(self, state: _TableState, lag: Callable[[], float], since: float, *, urgent_only: bool) -> Limits:
        now, turn = self._clock(), self._settings.turn_s
        seconds = max(_MIN_FRACTION * turn, turn - (now - since))
        return Limits(
            without=[kind for kind, rest in state.backoffs.items() if now < rest.until],
            seconds=seconds,
            bytes=int(self._rate * seconds),
            urgent_only=urgent_only,
            tries=1,
            is_awaited=lambda: lag() > self._wanted,
        )

    def _run_steps(self, name: str, state: _TableState, watch: Watchdog, limits: Limits) -> Report | None:
        """Runs the table's steps; returns None if the table does not exist yet."""
        context = replace(self._context, spark=watch.jobs, stop=watch.stop, tasks=self._allot_tasks()[1])
        try:
            return run_upkeep(context, name, limits, history=self._history, known=state.known)
        except NotFoundError:
            metrics.forget(name)
            return None
        except FrazilError as error:
            return Report(name, errors=[error])
        except Exception as error:  # upkeep must not stop a sink
            log.debug("upkeep failed unexpectedly", table=name, exc_info=error)
            return Report(name, errors=[FrazilError(f"unexpected {type(error).__name__}: {first_line(error)}")])

    def _interval(self, name: str) -> float:
        return _HISTORY_EVERY_S if name == self._history.name else self._settings.every_s

    def _schedule(self, name: str, state: _TableState, report: Report | None) -> None:
        """Schedules the table's next turn. A failed step does not delay the others."""
        every, now = self._interval(name), self._clock()
        if report is None:
            state.due = now + every * _SLOWDOWN
            return
        self._measure_rate(report)
        if report.errors and not report.outcomes and not self._context.stop.is_set():  # no plan could be made
            state.pause = double_pause(state.pause, every)
            state.due = now + state.pause
            for error in report.errors:
                log_failure(name, error.message, error.cause, error.hint, state.pause)
            return
        state.pause = 0.0
        state.due = now + (0.0 if report.unfinished else every)

    def _back_off(self, name: str, state: _TableState, report: Report, why: str | None) -> None:
        """Backs off a kind that did not succeed, longer each time, until a step of it does; other kinds continue."""
        for outcome in report.outcomes:
            if outcome.result not in UNSUCCESSFUL:
                state.backoffs.pop(outcome.kind, None)
                continue
            if outcome.result == "stopped" and why is None:
                continue
            before = state.backoffs.get(outcome.kind)
            pause = double_pause(before.pause if before else 0.0, self._interval(name))
            state.backoffs[outcome.kind] = TableBackoff(self._clock() + pause, pause)
            if outcome.result == "stopped" and outcome.kind in ("compact", "deletes"):
                self._rate = max(_LOWEST_RATE, self._rate / 2)  # they take in as many bytes as can be written in time
            log_backoff(name, outcome, pause, why, first=before is None)

    def _measure_rate(self, report: Report) -> None:
        for outcome in report.outcomes:
            if outcome.bytes_rewritten > _LOWEST_RATE and outcome.seconds > 0:
                seen = outcome.bytes_rewritten / outcome.seconds
                self._rate = max(_LOWEST_RATE, 0.7 * self._rate + 0.3 * seen)


@contextmanager
def make_pipeline_upkeep(
    settings: Settings, spark: SparkSession, catalog: str | None = None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[PipelineUpkeep | None]:
    """Yields the upkeep of a pipeline on this catalog; None if the settings disable it."""
    if not settings.model.upkeep.enabled:
        yield None
        return
    chosen, network = settings.catalog(catalog), settings.model.network
    with TableStore(open_catalog(chosen, network), chosen, network) as store:
        jobs = Jobs(lambda: spark)
        context = UpkeepContext(settings, chosen, store, jobs, threading.Event())
        history = History(store, settings.model.upkeep.history)
        try:
            yield PipelineUpkeep(
                context, jobs, history, cores=lambda: spark.sparkContext.defaultParallelism, clock=clock
            )
        finally:
            history.flush(now=True)
