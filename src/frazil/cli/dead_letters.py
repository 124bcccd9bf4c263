"""`frazil topic dead-letters list|show|replay`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from frazil.cli.invocation import CatalogOption, Run, command, new_app
from frazil.cli.topic_session import DryRun, TopicName, Yes, confirmed, session, settings_of

app = new_app(
    "Messages that a sink could not take: look at them, and send them again.",
    example="frazil topic dead-letters list orders",
)

_COLUMNS = ("topic", "partition", "offset", "sink", "status", "reason", "written_at")


class Status(StrEnum):
    dead = "dead"
    replaying = "replaying"
    replayed = "replayed"


@command(app, "list", example="frazil topic dead-letters list orders --status dead")
def list_(
    run: Run,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="only of this topic")] = None,
    status: Annotated[Status | None, typer.Option(help="only what has come so far")] = None,
    limit: Annotated[int, typer.Option(min=1, help="at most this many, newest first")] = 100,
    catalog: CatalogOption = None,
) -> None:
    """List dead letters, newest first, without their payloads."""
    from frazil.log.names import check_topic_name
    from frazil.topics.floor import LazyStore
    from frazil.topics.letters.resending import list_dead_letters

    settings = settings_of(run)
    if topic is not None:
        check_topic_name(topic)
    chosen = None if status is None else status.value
    store = LazyStore(settings, catalog).store()
    found = list_dead_letters(store, settings, topic=topic, status=chosen, limit=limit)
    rows = [[getattr(letter, name) for name in _COLUMNS] for letter in found]
    run.printer.rows(_COLUMNS, rows, none="no dead letters")


@command(app, example="frazil topic dead-letters show orders 42")
def show(
    run: Run,
    topic: TopicName,
    offset: Annotated[int, typer.Argument(min=0, help="the message's offset")],
    catalog: CatalogOption = None,
) -> None:
    """Show a dead letter, whole: why it could not be taken, where it came from, and its bytes."""
    from frazil.log.names import check_topic_name
    from frazil.topics.floor import LazyStore
    from frazil.topics.letters.resending import show_dead_letter

    settings = settings_of(run)
    check_topic_name(topic)
    letter = show_dead_letter(LazyStore(settings, catalog).store(), settings, topic, offset).to_dict()
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
    offset: Annotated[list[int] | None, typer.Option(min=0, help="only this one; may be repeated")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Publish dead letters again, each once, also if this is broken off and repeated."""
    from frazil.topics.letters.resending import list_dead_letters, replay_dead_letters

    with session(run, catalog) as at:
        at.access.info(topic)
        store = at.store.store()
        waiting = [
            letter.offset
            for letter in list_dead_letters(store, at.settings, topic=topic, limit=1_000_000)
            if letter.status != "replayed" and (offset is None or letter.offset in offset)
        ]
        plan: dict[str, Any] = {"topic": topic, "messages": len(waiting)}
        with confirmed(run, plan, yes=yes, dry_run=dry_run, what="publishing them again") as go:
            if go:
                done = replay_dead_letters(store, at.settings, at.access, topic, offsets=offset)
                run.printer.note(f"{done.sent} messages were published again")
