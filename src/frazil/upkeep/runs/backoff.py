"""How long to wait with what did not get through, in a pipeline, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass

from frazil.observe.logs import get_logger
from frazil.upkeep.model import Kind, Outcome

log = get_logger(__name__)

#: The longest pause of a table, or of one kind of step.
_LONGEST_S = 3600.0
#: What came of steps whose kind rests. One that was told to stop does so only if it was for its own length.
HINDERED = ("failed", "conflict", "unsupported", "stopped")


@dataclass(frozen=True)
class TableBackoff:
    """Of a kind of step that did not get through: until when, and how long that is."""

    until: float
    pause: float


def longer(pause: float, every: float) -> float:
    """The pause after one that was not long enough; `every` is the first."""
    return min(_LONGEST_S, max(every, 2 * pause))


def log_backoff(table: str, outcome: Outcome, pause: float, why: str | None, *, first: bool) -> None:
    """Says why a kind of step rests; `why` is for one that was cut off.

    A failure is told each time; what does not change by itself, only at first.
    """
    again, kind = round(pause), outcome.kind
    tell = log.warning if first else log.debug
    match outcome.result:
        case "conflict":
            log.info("upkeep was overtaken by another writer", table=table, kind=kind, again_in=again)
        case "stopped":
            hint = f"a longer upkeep.turn_s, or by hand: frazil upkeep run {table} --kind {kind}"
            tell("a step of upkeep was cut off", table=table, kind=kind, why=why, hint=hint, again_in=again)
        case "unsupported":
            tell(
                "a step of upkeep is not supported here",
                table=table,
                kind=kind,
                why=outcome.reason,
                hint=outcome.hint,
                again_in=again,
            )
        case _:
            log_failure(table, outcome.reason or outcome.result, None, outcome.hint, pause, kind)


def log_failure(
    table: str, error: str, cause: str | None, hint: str | None, pause: float, kind: Kind | None = None
) -> None:
    """Of one kind of step; or of the table as a whole, without one."""
    log.warning("upkeep failed", table=table, kind=kind, error=error, cause=cause, hint=hint, again_in=round(pause))
