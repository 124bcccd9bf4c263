"""Errors of a pipeline that ends before every topic is in its table, with the progress of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from frazil.errors import FrazilError, IntegrityError, InterruptedByUser, PartialError, UnavailableError
from frazil.log.protocol import TopicInfo
from frazil.topics.sinks.sink_runner import TopicStatus


def make_timeout_error(topic: str) -> UnavailableError:
    return UnavailableError(f"topic '{topic}' was not moved into its table in time", hint="the next pipeline continues")


def make_unusable_error(info: TopicInfo) -> IntegrityError:
    return IntegrityError(
        f"topic '{info.name}' cannot be used", cause=info.problem, hint=f"frazil topic verify {info.name}"
    )


def make_drain_error(failed: Mapping[str, FrazilError], total: int, statuses: Sequence[TopicStatus]) -> FrazilError:
    """Returns the error of a drain. It states the progress of each topic, up to which its table is complete."""
    errors = list(failed.values())
    error = (
        errors[0]
        if total == 1
        else PartialError(
            f"{len(failed)} of {total} topics could not be taken into their tables: {', '.join(failed)}",
            cause="; ".join(e.message for e in errors),
            hint=errors[0].hint,
        )
    )
    return error.adding(f"until then: {_format_progress(statuses)}", topics=_to_json(statuses))


def make_stop_error(statuses: Sequence[TopicStatus], why: FrazilError) -> PartialError:
    """Returns the error of a pipeline that was stopped and could not take everything in time."""
    cause = why.message if why.cause is None else f"{why.message} ({why.cause})"
    return PartialError(
        "stopped before everything was in its table",
        cause=cause,
        hint="nothing is lost: the log has the rest, and the next pipeline takes it",
    ).adding(f"until then: {_format_progress(statuses)}", topics=_to_json(statuses))


def make_interrupt_error(statuses: Sequence[TopicStatus]) -> InterruptedByUser:
    return InterruptedByUser(
        "interrupted before everything was in its table", hint="run the same command again to write the rest"
    ).adding(f"until then: {_format_progress(statuses)}", topics=_to_json(statuses))


def _to_json(statuses: Sequence[TopicStatus]) -> list[dict[str, Any]]:
    return [asdict(status) for status in statuses]


def _format_progress(statuses: Sequence[TopicStatus]) -> str:
    return ", ".join(f"{s.topic} {_format_position(s)}" for s in statuses) or "no topic was read"


def _format_position(status: TopicStatus) -> str:
    if status.offset is None:
        return "(not read)"
    return f"(offset {status.offset} of {max(status.end, status.offset)}; {status.rows} rows taken)"
