"""`frazil topic dead-letters list|show|replay`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CatalogOption, Run, command, new_app
from frazil.cli.topic_session import DryRun, TopicName, Yes, confirmed, session, settings_of
from frazil.errors import PartialError, UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from frazil.topics.dead_letters.filters import DeadLetterFilter

app = new_app(
    "Inspect and replay messages that a sink could not write.",
    example="frazil topic dead-letters list orders",
)

_COLUMNS = ("topic", "partition", "offset", "sink", "status", "reason", "written_at")

#: The reason of messages that only Frazil's own components may publish, and that came without their mark.
UNTRUSTED = "untrusted"
#: Offsets that an error names.
_NAMED = 10

Sink = Annotated[str | None, typer.Option(help="only dead letters of this sink")]
Partition = Annotated[int | None, typer.Option(min=0, help="only dead letters of this partition")]
First = Annotated[
    int | None, typer.Option("--from", metavar="OFFSET", min=0, help="only offsets from this one (inclusive)")
]
Before = Annotated[int | None, typer.Option("--to", metavar="OFFSET", min=0, help="only offsets below this one")]
Reason = Annotated[str | None, typer.Option(help="only with this reason, as printed by the list")]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="only messages that became dead letters at or after this time")
]
Until = Annotated[
    str | None, typer.Option(metavar="TIME", help="only messages that became dead letters before this time")
]


class Status(StrEnum):
    dead = "dead"
    replaying = "replaying"
    replayed = "replayed"


@command(app, "list", example="frazil topic dead-letters list orders --status dead")
def list_(
    run: Run,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="only of this topic")] = None,
    status: Annotated[Status | None, typer.Option(help="only dead letters with this status")] = None,
    sink: Sink = None,
    partition: Partition = None,
    first: First = None,
    before: Before = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="at most this many")] = 100,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="show the oldest first")] = False,
    catalog: CatalogOption = None,
) -> None:
    """List dead letters, newest first, without their payloads."""
    from frazil.log.names import check_topic_name
    from frazil.tables.store import LazyStore
    from frazil.topics.dead_letters.query import list_dead_letters

    settings = settings_of(run)
    if topic is not None:
        check_topic_name(topic)
    filters = _make_filter(topic, sink, partition, first, before, reason, since, until)
    chosen = None if status is None else status.value
    with LazyStore(settings, catalog) as opened:
        found = list_dead_letters(
            opened.store(), settings, filters, status=chosen, limit=limit, oldest_first=oldest_first
        )
    run.printer.rows(_COLUMNS, ([getattr(x, name) for name in _COLUMNS] for x in found), none="no dead letters")


@command(app, example="frazil topic dead-letters show orders 42")
def show(
    run: Run,
    topic: TopicName,
    offset: Annotated[int, typer.Argument(min=0, help="the message's offset")],
    catalog: CatalogOption = None,
) -> None:
    """Show a complete dead letter: why the sink rejected it, where it came from, and its bytes."""
    from frazil.log.names import check_topic_name
    from frazil.tables.store import LazyStore
    from frazil.topics.dead_letters.query import show_dead_letter

    settings = settings_of(run)
    check_topic_name(topic)
    with LazyStore(settings, catalog) as opened:
        letter = show_dead_letter(opened.store(), settings, topic, offset).to_dict()
    if not run.printer.json_output:
        letter["payload"] = _text(letter["payload"])
    run.printer.record(letter)


def _text(payload: bytes | None) -> Any:
    try:
        return payload.decode() if payload is not None else None
    except UnicodeDecodeError:
        return payload


@command(app, example="frazil topic dead-letters replay orders --offset 42 --yes")
def replay(
    run: Run,
    topic: TopicName,
    offset: Annotated[list[int] | None, typer.Option(min=0, help="only this offset; may be repeated")] = None,
    sink: Sink = None,
    partition: Partition = None,
    first: First = None,
    before: Before = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    as_internal: Annotated[
        bool,
        typer.Option("--as-internal", help="trust them as internal messages of Frazil; requires --reason untrusted"),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Publish dead letters again, each exactly once, even if you interrupt and repeat the command."""
    from frazil.topics.dead_letters.query import count_waiting
    from frazil.topics.dead_letters.replay import replay_dead_letters

    if as_internal and reason != UNTRUSTED:
        raise UsageError(
            "--as-internal applies only to messages that were rejected as untrusted",
            hint=f"--reason {UNTRUSTED} with it, after you have inspected each: frazil topic dead-letters show "
            f"{topic} OFFSET",
        )
    filters = _make_filter(topic, sink, partition, first, before, reason, since, until)
    with session(run, catalog) as at:
        at.access.info(topic)
        store = at.store.store()
        waiting = count_waiting(store, at.settings, filters, offsets=offset)
        plan: dict[str, Any] = {"topic": topic, "messages": waiting}
        refused: dict[int, str] = {}
        if as_internal:
            plan["as_internal"] = True

        def progress(sent: int) -> None:
            if sent < waiting:
                run.printer.note(f"{sent} of {waiting} messages")

        with confirmed(run, plan, yes=yes, dry_run=dry_run, what="publishing dead letters again") as go:
            if go:
                done = replay_dead_letters(
                    store,
                    at.settings,
                    at.access,
                    topic,
                    filters,
                    offsets=offset,
                    as_internal=as_internal,
                    progress=progress,
                )
                run.printer.note(f"{done.sent} messages were published again")
                refused = done.refused
    if refused:
        raise _stay(topic, refused)


def _stay(topic: str, refused: dict[int, str]) -> PartialError:
    offsets = sorted(refused)
    named = ", ".join(map(str, offsets[:_NAMED])) + (", …" if len(offsets) > _NAMED else "")
    return PartialError(
        f"the log rejects {len(offsets)} messages of topic '{topic}', which remain dead letters: offsets {named}",
        cause=refused[offsets[0]],
        hint=f"frazil topic dead-letters show {topic} {offsets[0]}, then publish it in a form that the log accepts",
    )


def _make_filter(
    topic: str | None,
    sink: str | None,
    partition: int | None,
    first: int | None,
    before: int | None,
    reason: str | None,
    since: str | None,
    until: str | None,
) -> DeadLetterFilter:
    from frazil.topics.dead_letters.filters import DeadLetterFilter

    if first is not None and before is not None and before <= first:
        raise UsageError(f"the range --from {first} --to {before} is empty", hint="set --to above --from")
    from_time, to_time = _time(since), _time(until)
    if from_time is not None and to_time is not None and to_time <= from_time:
        raise UsageError(f"the range --since {since} --until {until} is empty", hint="set --until later than --since")
    return DeadLetterFilter(topic, sink, partition, first, before, reason, from_time, to_time)


def _time(text: str | None) -> datetime | None:
    """A time as people write it; without a zone it is taken for UTC."""
    from datetime import UTC, datetime

    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a time", hint="a time such as 2026-01-31T12:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
