"""Upkeep of tables: takes a census, makes a plan, runs its steps one by one, and records their outcomes.

A run keeps no state. What it leaves undone, because of its time limit, a stop or another writer, the next one finds
again in the table.
"""

from __future__ import annotations

import importlib
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from frazil.catalogs import parse_name
from frazil.errors import FrazilError, first_line
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.tables.store import back_off
from frazil.upkeep import metrics
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.model import Kind, Outcome, Step
from frazil.upkeep.plans.manifest_stats import ManifestStatsCache
from frazil.upkeep.runs.history import History

if TYPE_CHECKING:
    from pyiceberg.table import Table

log = get_logger(__name__)

#: The module of this room whose `run` executes a kind of step. Imported on first use.
ACTIONS: dict[Kind, str] = {
    "retention": "rewrite.retention",
    "compact": "rewrite.compact",
    "deletes": "rewrite.deletes",
    "manifests": "rewrite.manifests",
    "expire": "expiry.expire",
    "reclaim": "expiry.reclaim",
    "metadata": "rewrite.metadata",
    "stats": "rewrite.statistics",
    "orphans": "expiry.orphans",
}
#: Limit of steps per run of one table, for a plan that never gets shorter.
_MAX_STEPS = 50
#: Kinds of which a plan may have several steps; one without effect says nothing about the others.
_SEVERAL = ("compact",)
#: Attempts of a step that loses conflicts, in a run on request.
_TRIES = 3
#: Kinds that only commit metadata or delete files: they take seconds, and come first if the time is limited.
_QUICK = ("expire", "reclaim", "metadata")
#: The least fraction of its bytes that a step may write, however little time is left.
_MIN_FRACTION = 0.25


@dataclass(frozen=True)
class Limits:
    """The limits of a run.

    Attributes:
        kinds: only these; empty: all.
        seconds: after which no further step begins; None: no limit. With a limit, the kind that was tried longest ago
            comes first, so that one that takes all the time, run after run, does not starve the others.
        bytes: approximate bytes that one step may rewrite in these seconds; None: no limit.
        urgent_only: only what cannot wait.
        tries: attempts of a step that loses conflicts.
        without: kinds to leave out.
        is_awaited: returns whether the table is needed; then no further step begins after one that was done.
    """

    kinds: Collection[Kind] = ()
    seconds: float | None = None
    bytes: int | None = None
    urgent_only: bool = False
    tries: int = _TRIES
    without: Collection[Kind] = ()
    is_awaited: Callable[[], bool] = lambda: False


@dataclass
class Report:
    """What a run did to one table.

    Attributes:
        table: which.
        steps: that the first plan had.
        outcomes: of the steps that were run, in their order.
        errors: of those that failed, and of the table itself.
        seconds: the run took.
        unfinished: time or bytes were over, or somebody waited for the table, before the plan was empty.
        notes: what the plan leaves out, and why.
    """

    table: str
    steps: list[Step] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    errors: list[FrazilError] = field(default_factory=list)
    seconds: float = 0.0
    unfinished: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether the table is another now."""
        return any(has_changed(outcome) for outcome in self.outcomes)

    @property
    def conflicts(self) -> int:
        return sum(outcome.conflicts for outcome in self.outcomes)


def has_changed(outcome: Outcome) -> bool:
    return outcome.result in ("done", "stopped") and bool(
        outcome.snapshot_id is not None or outcome.snapshots_removed or outcome.files_removed
    )


def run_upkeep(
    context: UpkeepContext,
    name: str,
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
    *,
    dry_run: bool = False,
    history: History | None = None,
    run_id: str | None = None,
    known: ManifestStatsCache | None = None,
) -> Report:
    """Does to a table what its policy asks for.

    A step that fails does not stop the others: it is told, counted, and stands in the report.

    Args:
        context: of which catalog.
        name: `namespace.table`.
        limits: how far to go.
        dry_run: only plan.
        history: keeps the outcomes.
        run_id: under which it does so.
        known: counts of the table's manifests, for whoever looks at it again and again.

    Raises:
        NotFoundError: there is no such table.
        ConfigError: its policy contradicts itself. Nothing was changed.
    """
    began = time.monotonic()
    report = Report(".".join(parse_name(name, context.catalog.name)))
    try:
        _Run(context, report, limits, history, run_id or new_run_id(), known or ManifestStatsCache()).run(dry_run)
    finally:
        report.seconds = time.monotonic() - began
        if not dry_run:
            metrics.SECONDS.labels(report.table).inc(report.seconds)
    return report


def new_run_id() -> str:
    return uuid.uuid4().hex


class _Run:
    """One run of one table."""

    def __init__(
        self,
        context: UpkeepContext,
        report: Report,
        limits: Limits,
        history: History | None,
        run_id: str,
        known: ManifestStatsCache,
    ) -> None:
        self._context, self._report, self._limits, self._history, self._run_id = (
            context,
            report,
            limits,
            history,
            run_id,
        )
        self._ends = None if limits.seconds is None else time.monotonic() + limits.seconds
        #: Kinds that cannot get further in this run.
        self._spent: set[Kind] = set()
        #: Steps that brought nothing; others of their kind may.
        self._fruitless: list[Step] = []
        self._last: Step | None = None
        self._known = known
        #: When each kind was last tried, in seconds since 1970.
        self._tried_at: dict[Kind, float] = {}

    def run(self, dry_run: bool) -> None:
        table = self._context.load(self._report.table)
        steps = self._plan(table)
        self._report.steps = steps
        self._report.notes = list_notes(self._context, table, self._limits.kinds, dry_run=dry_run)
        if dry_run:
            return
        for _ in range(_MAX_STEPS):
            step = next(iter(self._order_steps(steps)), None)
            if self._context.stop.is_set() or (step is not None and (self._is_late() or self._is_awaited())):
                break
            if step is None:
                return
            wish = _make_urgent_copy(step)
            if wish == self._last:  # it says it was done, and the plan is the same
                self._fruitless.append(wish)
                continue
            self._last = wish
            self._tried_at[step.kind] = time.time()
            outcome = self._step(table, step)
            if not has_changed(outcome):
                self._fruitless.append(wish)
                if outcome.result != "nothing" or step.kind not in _SEVERAL:
                    self._spent.add(step.kind)
                continue
            table = self._context.load(self._report.table)
            steps = self._plan(table)
        self._report.unfinished = True

    def _order_steps(self, steps: list[Step]) -> list[Step]:
        """The steps that are left, in the order of the plan; where time is limited, the longest untried first."""
        left = [s for s in steps if s.kind not in self._spent and _make_urgent_copy(s) not in self._fruitless]
        if self._ends is None:
            return left
        tried = dict(self._history.tried(self._report.table)) if self._history is not None else {}
        tried |= self._tried_at
        return sorted(left, key=lambda s: (tried.get(s.kind, 0.0), s.kind not in _QUICK))

    def _tries(self, step: Step) -> int:
        """Who loses against other writers within limited time leaves the rest of it to the others."""
        others = self._ends is not None and any(s.kind != step.kind for s in self._order_steps(self._report.steps))
        return 1 if others else self._limits.tries

    def _is_late(self) -> bool:
        return self._ends is not None and time.monotonic() >= self._ends

    def _is_awaited(self) -> bool:
        return self._report.changed and self._limits.is_awaited()

    def _budget(self) -> int | None:
        """Bytes for the next step: so many as can be written in the time that is left."""
        most, seconds = self._limits.bytes, self._limits.seconds
        if most is None or self._ends is None or not seconds:
            return most
        left = (self._ends - time.monotonic()) / seconds
        return int(most * min(1.0, max(_MIN_FRACTION, left)))

    def _plan(self, table: Table) -> list[Step]:
        limits = self._limits
        last = self._history.last(self._report.table) if self._history is not None else None
        return [
            step
            for step in plan_steps(
                self._context, table, budget=self._budget(), known=self._known, last=last, asked=limits.kinds
            )
            if (not limits.kinds or step.kind in limits.kinds)
            and step.kind not in limits.without
            and (step.urgent or not limits.urgent_only)
        ]

    def _step(self, table: Table, step: Step) -> Outcome:
        began, started_at = time.monotonic(), time.time()
        log.debug("a step of upkeep", table=self._report.table, kind=step.kind, why=step.why)
        outcome, error = self._run_with_retries(table, step)
        if self._context.stop.is_set() and (error is not None or outcome.result == "nothing"):
            # It was cancelled, and left the table as it was.
            outcome, error = Outcome(step.kind, "stopped", reason="told to end before it was done"), None
        outcome = replace(outcome, seconds=time.monotonic() - began)
        self._report.outcomes.append(outcome)
        metrics.record_outcome(self._report.table, outcome)
        if self._history is not None:
            self._history.add(self._run_id, self._report.table, outcome, started_at)
        if error is not None:
            self._report.errors.append(error)
            log.info(
                "a step of upkeep failed",
                table=self._report.table,
                kind=step.kind,
                error=error.message,
                cause=error.cause,
                hint=error.hint,
            )
        return outcome

    def _run_with_retries(self, table: Table, step: Step) -> tuple[Outcome, FrazilError | None]:
        conflicts = 0
        tries = self._tries(step)
        for attempt in range(1, tries + 1):
            try:
                reach(f"upkeep.{step.kind}.before")
                outcome = action(step.kind)(self._context, table, step)
                reach(f"upkeep.{step.kind}.after")
            except FrazilError as error:
                return _failed(step, error, conflicts), error
            except Exception as error:  # one step must not stop the others
                log.debug("a step of upkeep failed unexpectedly", kind=step.kind, exc_info=error)
                told = _unexpected(error)
                return _failed(step, told, conflicts), told
            conflicts += outcome.conflicts or (1 if outcome.result == "conflict" else 0)
            outcome = replace(outcome, conflicts=conflicts)
            last = attempt == tries or self._context.stop.is_set() or self._is_late()
            if outcome.result != "conflict" or last:
                return outcome, None
            back_off(attempt)
            table = self._context.load(self._report.table)
        raise AssertionError("the last attempt returns")


def _failed(step: Step, error: FrazilError, conflicts: int) -> Outcome:
    reason = f"{error.message}: {error.cause}" if error.cause else error.message
    return Outcome(step.kind, "failed", conflicts=conflicts, reason=reason, hint=error.hint)


def _unexpected(error: Exception) -> FrazilError:
    told = FrazilError(
        f"unexpected {type(error).__name__}: {first_line(error)}", hint="the same with -v shows where; please report it"
    )
    told.__cause__ = error
    return told


def action(kind: Kind) -> Callable[[UpkeepContext, Table, Step], Outcome]:
    """The function that does steps of a kind."""
    module = importlib.import_module(f"frazil.upkeep.{ACTIONS[kind]}")
    run: Callable[[UpkeepContext, Table, Step], Outcome] = module.run
    return run


def plan_steps(
    context: UpkeepContext,
    table: Table,
    *,
    budget: int | None = None,
    known: ManifestStatsCache | None = None,
    last: Mapping[Kind, float] | None = None,
    asked: Collection[Kind] = (),
) -> list[Step]:
    """What the policy of a table asks for, as the table is now.

    Args:
        context: of which catalog.
        table: as it was loaded.
        budget: bytes that one step may write anew, about; None: as many as it takes.
        known: counts of manifests from former looks.
        last: when steps of a kind were last done, in seconds since 1970.
        asked: kinds that somebody has asked for by name.

    Raises:
        ConfigError: the policy contradicts itself.
    """
    from frazil.upkeep.plans.census import take
    from frazil.upkeep.plans.plan import plan
    from frazil.upkeep.policy import policy_for

    policy = policy_for(context.settings, table)
    if policy.orphans_on_request and "orphans" in asked:
        policy = replace(policy, orphans=True)
    census = take(context, table, policy, known=known)
    metrics.show_census(census)
    return plan(census, policy, budget=budget, last=last)


def list_notes(
    context: UpkeepContext, table: Table, asked: Collection[Kind] = (), *, dry_run: bool = False
) -> list[str]:
    """What a look leaves out that its policy lets go, or that is done on request only; the latter where it is asked."""
    from frazil.upkeep.plans.plan_notes import held_back, on_request
    from frazil.upkeep.policy import policy_for

    policy, name = policy_for(context.settings, table), ".".join(table.name())
    now_ms = int(time.time() * 1000)
    found = held_back(table.metadata, name, policy, now_ms) if not asked or "expire" in asked else []
    return found + (on_request(table.metadata, policy) if dry_run and not asked else [])


def _make_urgent_copy(step: Step) -> Step:
    """A step as it is whenever it is planned: its budget shrinks with the time that is left."""
    return replace(step, options={name: value for name, value in step.options.items() if name != "budget"})
