"""How the tables stand that upkeep cares for: what was done, what it cost, and what is next. No pipeline has to run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from frazil.errors import FrazilError, NotFoundError
from frazil.topics.sinks.registry import sink_definitions
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.model import Kind
from frazil.upkeep.policy import Policy, policy_for
from frazil.upkeep.runs.history import History, last_done
from frazil.upkeep.runs.run import plan_steps
from frazil.upkeep.runs.run_many import match_tables

#: What conflicts and share are counted over.
WINDOW = datetime.timedelta(days=1)


@dataclass(frozen=True)
class TableStatus:
    """How a table stands.

    Attributes:
        table: which.
        last_run: when its last step began, as the history has it.
        last_kind: of that step.
        last_result: of that step.
        steps: kinds of the steps that its policy asks for now; the first is next.
        next_due: now where there is one of these; else when it is time to look for orphans, or for statistics.
        urgent: whether one of them cannot wait.
        cost: bytes that these would read and write again, about.
        failed: steps that failed within the last day.
        conflicts: commits lost to other writers within the last day.
        share: of that day that upkeep took; of the time since its first step, where that is shorter.
        error: why the table could not be looked at.
        hint: what a person can do about that.
    """

    table: str
    last_run: datetime.datetime | None = None
    last_kind: str | None = None
    last_result: str | None = None
    steps: tuple[str, ...] = ()
    next_due: datetime.datetime | None = None
    urgent: bool = False
    cost: int = 0
    failed: int = 0
    conflicts: int = 0
    share: float = 0.0
    error: str | None = None
    hint: str | None = None


def statuses(context: UpkeepContext, history: History, patterns: Sequence[str] = ()) -> list[TableStatus]:
    """The status of the tables that patterns name; without one, of topics' tables and of all that the history knows.

    Raises:
        NotFoundError: a pattern names no table.
    """
    now = datetime.datetime.now(datetime.UTC)
    chosen = match_tables(context, patterns) if patterns else None
    rows = history.rows(chosen or ())
    if chosen is None:
        chosen = sorted({*(row["table"] for row in rows), *_of_sinks(context)})
    return [_status(context, name, [row for row in rows if row["table"] == name], now) for name in chosen]


def _of_sinks(context: UpkeepContext) -> list[str]:
    """Returns the tables in the namespaces of sinks."""
    found: list[str] = []
    for namespace in dict.fromkeys(sink.settings(context.settings).namespace for sink in sink_definitions().values()):
        with suppress(NotFoundError):
            found += match_tables(context, [f"{namespace}.*"])
    return found


def _status(context: UpkeepContext, name: str, rows: Sequence[dict[str, Any]], now: datetime.datetime) -> TableStatus:
    recent = [row for row in rows if row["started_at"] >= now - WINDOW]
    since = min((row["started_at"] for row in recent), default=now)
    begun = now - WINDOW if any(row["started_at"] < now - WINDOW for row in rows) else since
    last: dict[str, Any] = rows[0] if rows else dict.fromkeys(("started_at", "kind", "result"))
    told: dict[str, Any] = {}
    try:
        table, done = context.load(name), last_done(rows)
        steps = plan_steps(context, table, last=done)
        told |= {"next_due": now if steps else _next_due(policy_for(context.settings, table), done)}
        told |= {"steps": tuple(s.kind for s in steps), "urgent": any(s.urgent for s in steps)}
        told |= {"cost": sum(s.cost for s in steps)}
    except FrazilError as error:
        told |= {"error": error.message, "hint": error.hint}
    return TableStatus(
        name,
        last_run=last["started_at"],
        last_kind=last["kind"],
        last_result=last["result"],
        failed=sum(row["result"] == "failed" for row in recent),
        conflicts=sum(row["conflicts"] or 0 for row in recent),
        share=_share(recent, (now - begun).total_seconds()),
        **told,
    )


def _next_due(policy: Policy, done: Mapping[Kind, float]) -> datetime.datetime | None:
    times = [done["orphans"] + policy.orphan_every_s] if policy.orphans and "orphans" in done else []
    times += [done["stats"] + policy.statistics_every_s] if policy.statistics and "stats" in done else []
    return datetime.datetime.fromtimestamp(min(times), datetime.UTC) if times else None


def _share(rows: Sequence[dict[str, Any]], seconds: float) -> float:
    spent = sum(row["seconds"] or 0.0 for row in rows)
    return round(min(1.0, spent / seconds), 4) if seconds > 0 else 0.0
