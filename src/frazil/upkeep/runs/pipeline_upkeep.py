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
from frazil.upkeep.runs.backoff import HINDERED, TableBackoff, log_backoff, log_failure, longer
from frazil.upkeep.runs.history import History
from frazil.upkeep.runs.run import Limits, Report, run_upkeep
from frazil.upkeep.runs.watchdog import Watchdog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger(__name__)

#: A sink is behind when its oldest message waits so many times as long as it should, and so many seconds.
_BEHIND = (5.0, 5.0)
#: While a sink is behind, or the share is used up, looks for what is urgent are so many times rarer.
_RARER = 5.0
#: Seconds between two looks at upkeep's own history, at least.
_HISTORY_EVERY_S = 600.0
#: A turn is cut off when it takes so many times as long as it should; the second where messages wait for the sink.
_TOO_LONG = (2.0, 1.5)
#: Turns at once: the other threads of a pipeline are its sinks'.
_AT_ONCE = 2
#: Bytes per second that compaction is taken to write before it was measured, and at least.
_FIRST_RATE, _LOWEST_RATE = 8e6, 1e6
#: The part of a turn that a table may use at least, if it gets one at all.
_LEAST_PART = 0.25


@dataclass
class _Charge:
    """A table in the caretaker's eyes."""

    due: float
    """When to look at it again."""
    pause: float = 0.0
    """Where the table as a whole cannot be cared for; doubled each time."""
    resting: dict[Kind, TableBackoff] = field(default_factory=dict)
    """Kinds that failed, were cut off or lost against other writers, and have not succeeded since."""
    busy: threading.Lock = field(default_factory=threading.Lock)
    known: ManifestStatsCache = field(default_factory=ManifestStatsCache)


@dataclass
class _Share:
    """Seconds that upkeep may take of a sink's time: they come with time, and are spent by turns."""

    credit: float
    at: float

    def earn(self, now: float, share: float, most: float) -> float:
        self.credit = min(most, self.credit + (now - self.at) * share)
        self.at = now
        return self.credit


class PipelineUpkeep:
    """Cares for the tables of a pipeline's sinks, in their threads. See `frazil.topics.sinks.sink_upkeep.Caretaker`.

    Args:
        context: of which catalog; its sessions are `jobs`.
        jobs: the Spark jobs of upkeep.
        history: keeps what was done.
        cores: that Spark has now; None: upkeep may use all there are.
        clock: seconds, of any origin.
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
        self._charges: dict[str, _Charge] = {}
        self._shares: dict[str, _Share] = {}
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
                break  # a batch first; the others have their turn after it
            if not self._context.stop.is_set() and self._clock() - began < self._settings.turn_s:
                changed |= self._visit(name, tables[-1], lag, began)
        self._history.flush()
        return changed

    def _due(self, name: str) -> float:
        """The one that has waited longest comes first, so that a long plan of one does not keep the others waiting."""
        charge = self._charges.get(name)
        return -math.inf if charge is None else charge.due

    def stop(self) -> None:
        self._context.stop.set()
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.end()

    def _visit(self, name: str, payer: str, lag: Callable[[], float], since: float) -> bool:
        """One turn of one table, paid from the share of the sink whose time it takes."""
        now, lag_s = self._clock(), lag()
        with self._lock:
            charge = self._charges.get(name) or self._charges.setdefault(name, _Charge(self._first(name, now)))
            share = self._shares.setdefault(payer, _Share(self._settings.share * self._settings.every_s, now))
            credit = share.earn(now, self._settings.share, self._settings.turn_s)
        limited = lag_s > self._behind or credit <= 0
        if now < charge.due + (self._settings.every_s * (_RARER - 1) if limited else 0):
            return False
        at_once, _ = self._room()
        with self._lock:
            if self._running >= at_once:
                return False  # tried again after the next batch
            self._running += 1
        try:
            with self._watched(since, lag) as watch:
                limits = self._limits(charge, lag, since, urgent_only=limited)
                return self._attend(name, charge, share, watch, limits)
        finally:
            with self._lock:
                self._running -= 1

    def _room(self) -> tuple[int, int | None]:
        """Turns at once, and the tasks of each that may write: one core is left to sinks whose tables have no turn.

        Asked each time, since executors come and go.
        """
        if self._cores is None:
            return _AT_ONCE, None
        cores = max(1, self._cores() - 1)
        at_once = min(_AT_ONCE, cores)
        return at_once, cores // at_once

    @contextmanager
    def _watched(self, since: float, lag: Callable[[], float]) -> Iterator[Watchdog]:
        with Watchdog(self._jobs.part(), lambda: self._too_long(since, lag)) as watch:
            with self._lock:
                self._watches.add(watch)
            if self._context.stop.is_set():  # `end` may have come before it was added
                watch.end()
            try:
                yield watch
            finally:
                with self._lock:
                    self._watches.discard(watch)

    def _too_long(self, since: float, lag: Callable[[], float]) -> str | None:
        """Why a sink cannot wait any longer."""
        took, turn = self._clock() - since, self._settings.turn_s
        if took > _TOO_LONG[0] * turn:
            return f"it took longer than {_TOO_LONG[0] * turn:g} s"
        if took > _TOO_LONG[1] * turn and (waits := lag()) > self._behind:
            return f"it took longer than {_TOO_LONG[1] * turn:g} s, and the sink is {waits:.0f} s behind"
        return None

    def _attend(self, name: str, charge: _Charge, share: _Share, watch: Watchdog, limits: Limits) -> bool:
        if not charge.busy.acquire(blocking=False):
            return False  # in a turn of another sink
        began = self._clock()
        try:
            report = self._care_for(name, charge, watch, limits)
            with self._lock:
                share.credit -= self._clock() - began
            self._settle(name, charge, report)
            if report is not None:
                self._rest(name, charge, report, watch.why)
        finally:
            charge.busy.release()
        return report is not None and report.changed

    def _first(self, name: str, now: float) -> float:
        return now + (_HISTORY_EVERY_S if name == self._history.name else 0)

    def _limits(self, charge: _Charge, lag: Callable[[], float], since: float, *, urgent_only: bool) -> Limits:
        now, turn = self._clock(), self._settings.turn_s
        seconds = max(_LEAST_PART * turn, turn - (now - since))
        return Limits(
            without=[kind for kind, rest in charge.resting.items() if now < rest.until],
            seconds=seconds,
            bytes=int(self._rate * seconds),
            urgent_only=urgent_only,
            tries=1,
            is_awaited=lambda: lag() > self._wanted,
        )

    def _care_for(self, name: str, charge: _Charge, watch: Watchdog, limits: Limits) -> Report | None:
        """None: there is no such table yet."""
        context = replace(self._context, spark=watch.jobs, stop=watch.stop, tasks=self._room()[1])
        try:
            return run_upkeep(context, name, limits, history=self._history, known=charge.known)
        except NotFoundError:
            metrics.forget(name)
            return None
        except FrazilError as error:
            return Report(name, errors=[error])
        except Exception as error:  # upkeep must not stop a sink
            log.debug("upkeep failed unexpectedly", table=name, exc_info=error)
            return Report(name, errors=[FrazilError(f"unexpected {type(error).__name__}: {first_line(error)}")])

    def _every(self, name: str) -> float:
        return _HISTORY_EVERY_S if name == self._history.name else self._settings.every_s

    def _settle(self, name: str, charge: _Charge, report: Report | None) -> None:
        """When to look at the table again. A step that failed is no reason to wait with the others."""
        every, now = self._every(name), self._clock()
        if report is None:
            charge.due = now + every * _RARER
            return
        self._learn_rate(report)
        if report.errors and not report.outcomes and not self._context.stop.is_set():  # not even a plan could be made
            charge.pause = longer(charge.pause, every)
            charge.due = now + charge.pause
            for error in report.errors:
                log_failure(name, error.message, error.cause, error.hint, charge.pause)
            return
        charge.pause = 0.0
        charge.due = now + (0.0 if report.unfinished else every)

    def _rest(self, name: str, charge: _Charge, report: Report, why: str | None) -> None:
        """A kind that did not get through waits, longer each time, until a step of it succeeds; the others go on."""
        for outcome in report.outcomes:
            if outcome.result not in HINDERED:
                charge.resting.pop(outcome.kind, None)
                continue
            if outcome.result == "stopped" and why is None:
                continue
            before = charge.resting.get(outcome.kind)
            pause = longer(before.pause if before else 0.0, self._every(name))
            charge.resting[outcome.kind] = TableBackoff(self._clock() + pause, pause)
            if outcome.result == "stopped" and outcome.kind in ("compact", "deletes"):
                self._rate = max(_LOWEST_RATE, self._rate / 2)  # they take in as many bytes as can be written in time
            log_backoff(name, outcome, pause, why, first=before is None)

    def _learn_rate(self, report: Report) -> None:
        for outcome in report.outcomes:
            if outcome.bytes_rewritten > _LOWEST_RATE and outcome.seconds > 0:
                seen = outcome.bytes_rewritten / outcome.seconds
                self._rate = max(_LOWEST_RATE, 0.7 * self._rate + 0.3 * seen)


@contextmanager
def make_pipeline_upkeep(
    settings: Settings, spark: SparkSession, catalog: str | None = None, *, clock: Callable[[], float] = time.monotonic
) -> Iterator[PipelineUpkeep | None]:
    """The caretaker of a pipeline on this catalog; None where the settings want none."""
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
