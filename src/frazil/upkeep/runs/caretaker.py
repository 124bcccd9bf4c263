"""Upkeep inside a pipeline: takes turns with the sinks, for a bounded share of their time, and yields to their lag."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from frazil.catalogs import open_catalog
from frazil.errors import FrazilError, NotFoundError, first_line
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.upkeep import metrics
from frazil.upkeep.care import Care
from frazil.upkeep.jobs import Jobs
from frazil.upkeep.plans.tally import Tallies
from frazil.upkeep.runs.history import History
from frazil.upkeep.runs.run import Limits, Report, care_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

#: A sink is behind when its oldest message waits so many times as long as it should, and so many seconds.
_BEHIND = (5.0, 5.0)
#: While a sink is behind, or the share is used up, looks for what is urgent are so many times rarer.
_RARER = 5.0
#: Seconds between two looks at upkeep's own history, at least.
_HISTORY_EVERY_S = 600.0
#: Turns at once: the other threads of a pipeline are its sinks'.
_AT_ONCE = 2
#: The longest pause after conflicts and failures.
_LONGEST_PAUSE_S = 3600.0
#: Bytes per second that compaction is taken to write before it was measured, and at least.
_FIRST_RATE, _LOWEST_RATE = 8e6, 1e6


@dataclass
class _Charge:
    """A table in the caretaker's eyes."""

    due: float
    """When to look at it again."""
    pause: float = 0.0
    """After conflicts or failures; doubled by each."""
    busy: threading.Lock = field(default_factory=threading.Lock)
    known: Tallies = field(default_factory=Tallies)


@dataclass
class _Share:
    """Seconds that upkeep may take of a sink's time: they come with time, and are spent by turns."""

    credit: float
    at: float

    def earn(self, now: float, share: float, most: float) -> float:
        self.credit = min(most, self.credit + (now - self.at) * share)
        self.at = now
        return self.credit


class TableCaretaker:
    """Cares for the tables of a pipeline's sinks, in their threads. See `frazil.topics.sinks.caretaker.Caretaker`.

    Args:
        care: of which catalog; its sessions are `jobs`.
        jobs: the Spark jobs of upkeep.
        history: keeps what was done.
        clock: seconds, of any origin.
    """

    def __init__(
        self, care: Care, jobs: Jobs, history: History, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._care, self._jobs, self._history, self._clock = care, jobs, history, clock
        self._settings = care.settings.model.upkeep
        wanted = care.settings.model.pipeline.max_lag_ms / 1000
        self._behind = max(_BEHIND[0] * wanted, _BEHIND[1])
        self._rate = _FIRST_RATE
        self._charges: dict[str, _Charge] = {}
        self._shares: dict[str, _Share] = {}
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(_AT_ONCE)

    def turn(self, tables: Sequence[str], lag_s: float) -> bool:
        changed = False
        for name in [*reversed(tables), *([self._history.name] if self._history.name else [])]:
            if not self._care.stop.is_set():
                changed |= self._visit(name, tables[-1], lag_s)
        self._history.flush()
        return changed

    def end(self) -> None:
        self._care.stop.set()
        self._jobs.cancel()

    def _visit(self, name: str, payer: str, lag_s: float) -> bool:
        """One turn of one table, paid from the share of the sink whose time it takes."""
        now = self._clock()
        with self._lock:
            charge = self._charges.get(name) or self._charges.setdefault(name, _Charge(self._first(name, now)))
            share = self._shares.setdefault(payer, _Share(self._settings.share * self._settings.every_s, now))
            credit = share.earn(now, self._settings.share, self._settings.turn_s)
        limited = lag_s > self._behind or credit <= 0
        if now < charge.due + (self._settings.every_s * (_RARER - 1) if limited else 0):
            return False
        if not self._turns.acquire(blocking=False):
            return False  # tried again after the next batch
        try:
            return self._attend(name, charge, share, urgent_only=limited)
        finally:
            self._turns.release()

    def _attend(self, name: str, charge: _Charge, share: _Share, *, urgent_only: bool) -> bool:
        if not charge.busy.acquire(blocking=False):
            return False  # in a turn of another sink
        began = self._clock()
        try:
            report = self._care_for(name, charge.known, urgent_only=urgent_only)
            with self._lock:
                share.credit -= self._clock() - began
            self._settle(name, charge, report)
        finally:
            charge.busy.release()
        return report is not None and report.changed

    def _first(self, name: str, now: float) -> float:
        return now + (_HISTORY_EVERY_S if name == self._history.name else 0)

    def _care_for(self, name: str, known: Tallies, *, urgent_only: bool) -> Report | None:
        """None: there is no such table yet."""
        turn = self._settings.turn_s
        limits = Limits(seconds=turn, bytes=int(self._rate * turn), urgent_only=urgent_only, tries=1)
        try:
            return care_for(self._care, name, limits, history=self._history, known=known)
        except NotFoundError:
            metrics.forget(name)
            return None
        except FrazilError as error:
            return Report(name, errors=[error])
        except Exception as error:  # upkeep must not stop a sink
            log.debug("upkeep failed unexpectedly", table=name, exc_info=error)
            return Report(name, errors=[FrazilError(f"unexpected {type(error).__name__}: {first_line(error)}")])
        finally:
            self._jobs.leave()

    def _settle(self, name: str, charge: _Charge, report: Report | None) -> None:
        """When to look at the table again."""
        every = _HISTORY_EVERY_S if name == self._history.name else self._settings.every_s
        now = self._clock()
        if report is None:
            charge.due = now + every * _RARER
            return
        self._learn_rate(report)
        lost = any(outcome.result == "conflict" for outcome in report.outcomes)
        if (report.errors or lost) and not self._care.stop.is_set():
            charge.pause = min(_LONGEST_PAUSE_S, max(every, 2 * charge.pause))
            charge.due = now + charge.pause
            self._tell(name, charge, report)
            return
        charge.pause = 0.0
        charge.due = now + (0.0 if report.unfinished else every)

    def _tell(self, name: str, charge: _Charge, report: Report) -> None:
        again = round(charge.pause)
        for error in report.errors:
            log.warning(
                "upkeep failed", table=name, error=error.message, cause=error.cause, hint=error.hint, again_in=again
            )
        if not report.errors:
            log.info("upkeep was overtaken by another writer", table=name, again_in=again)

    def _learn_rate(self, report: Report) -> None:
        for outcome in report.outcomes:
            if outcome.bytes_rewritten > _LOWEST_RATE and outcome.seconds > 0:
                seen = outcome.bytes_rewritten / outcome.seconds
                self._rate = max(_LOWEST_RATE, 0.7 * self._rate + 0.3 * seen)


@contextmanager
def caretaking(settings: Settings, spark: SparkSession, catalog: str | None = None) -> Iterator[TableCaretaker | None]:
    """The caretaker of a pipeline on this catalog; None where the settings want none."""
    if not settings.model.upkeep.enabled:
        yield None
        return
    chosen, network = settings.catalog(catalog), settings.model.network
    with TableStore(open_catalog(chosen, network), chosen, network) as store:
        jobs = Jobs(lambda: spark)
        care = Care(settings, chosen, store, jobs, threading.Event())
        history = History(store, settings.model.upkeep.history)
        try:
            yield TableCaretaker(care, jobs, history)
        finally:
            history.flush(now=True)
