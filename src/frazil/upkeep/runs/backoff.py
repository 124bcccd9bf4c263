"""Back-off of tables and kinds of steps in a pipeline, and its log messages."""

from __future__ import annotations

from dataclasses import dataclass

from frazil.observe.logs import get_logger
from frazil.upkeep.model import Kind, Outcome

log = get_logger(__name__)

#: The longest pause of a table, or of one kind of step.
_LONGEST_S = 3600.0
#: Results after which a kind of step backs off; `stopped` only if it was stopped for its own duration.
UNSUCCESSFUL = ("failed", "conflict", "unsupported", "stopped")


@dataclass(frozen=True)
class TableBackoff:
    """The back-off of a kind of step: its end and its length."""

    until: float
    pause: float


def double_pause(pause: float, every: float) -> float:
    """Returns the pause after one that was not long enough; `every` is the first."""
    return min(_LONGEST_S, max(every, 2 * pause))


def log_backoff(table: str, outcome: Outcome, pause: float, why: str | None, *, first: bool) -> None:
    """Logs why a kind of step backs off; `why` is for one that was cut off.

    A failure is logged each time; a condition that does not change by itself only once.
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
    """Logs the failure of a kind of step, or of the table as a whole without one."""
    log.warning("upkeep failed", table=table, kind=kind, error=error, cause=cause, hint=hint, again_in=round(pause))
