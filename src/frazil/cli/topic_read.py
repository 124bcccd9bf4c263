"""`frazil topic tail|replay`."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CatalogOption, Run
from frazil.cli.topic_session import TopicName, session
from frazil.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa


class Format(StrEnum):
    text = "text"
    json = "json"
    ndjson = "ndjson"
    raw = "raw"


FormatOption = Annotated[
    Format | None, typer.Option(help="ndjson: a JSON object per line; raw: payloads, each followed by a newline")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="wait for further messages, until Ctrl-C")]


def tail(
    run: Run,
    topic: TopicName,
    number: Annotated[int, typer.Option("-n", "--number", min=0, help="number of messages to show first")] = 10,
    follow: Follow = False,
    format: FormatOption = None,  # noqa: A002 - the option's word
) -> None:
    """Show the last messages that are on disk in the log."""
    from frazil.topics.reading.reader import TopicReader

    with session(run) as at:
        info = at.access.info(topic)
        reader = TopicReader(at.access, topic, first="log")
        start = max(info.start, info.end - number)
        _write(run, reader.read(start, follow=follow), format, follow=follow)


def replay(
    run: Run,
    topic: TopicName,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="OFFSET|TIME",
            help="an offset, a time as 2026-01-31T12:00:00Z, start or end [default: start]",
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="OFFSET|TIME", help="stop before this position [default: the current end]")
    ] = None,
    follow: Follow = False,
    format: FormatOption = None,  # noqa: A002 - the option's word
    subscription: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="continue at the committed position of this subscription, and commit the new one"
        ),
    ] = None,
    catalog: CatalogOption = None,
) -> None:
    """Read messages from an offset or a time: from the table, then from the log, in order and without a gap."""
    from frazil.topics.reading.seek import seek
    from frazil.topics.storage import open_storage

    if follow and to is not None:
        raise UsageError("--follow and --to exclude each other", hint="give one of them")
    with session(run, catalog) as at:
        reader = open_storage(at.access, at.settings, topic, at.store).reader
        start = None if from_ is None else seek(reader, from_)
        if subscription is not None:
            from frazil.log.names import check_name

            check_name(subscription, "subscription")
            start = reader.info().subscriptions.get(subscription) if start is None else start
        end = None if to is None else seek(reader, to)
        tables = reader.read(start, end=end, follow=follow)

        def keep_place(table: pa.Table) -> None:
            if subscription is not None:
                at.access.commit(topic, subscription, table.column("offset")[-1].as_py() + 1)

        _write(run, tables, format, follow=follow, after=keep_place)


def _write(
    run: Run,
    tables: Iterable[pa.Table],
    chosen: Format | None,
    *,
    follow: bool,
    after: Callable[[pa.Table], None] = lambda _table: None,
) -> None:
    """Prints messages as they come. `after` is called when those of a table are out."""
    from frazil.api.reading import json_bytes, messages_of

    form = chosen or (Format.json if run.printer.json_output else Format.text)
    if form is Format.json and follow:
        if chosen is Format.json:
            raise UsageError("--follow cannot print a JSON list", hint="--format ndjson")
        form = Format.ndjson
    out = sys.stdout.buffer
    first = True
    if form is Format.json:
        out.write(b"[")
    for table in tables:
        if form is Format.raw:
            out.writelines(payload + b"\n" for payload in table.column("payload").to_pylist())
        elif form is Format.text:
            out.writelines(f"{_line(message)}\n".encode() for message in messages_of(table, "text"))
        else:
            between = b"\n" if form is Format.ndjson else b",\n"
            for message in messages_of(table, "text"):
                out.write(b"" if first else between)
                out.write(json_bytes(message))
                first = False
            if form is Format.ndjson:
                out.write(b"\n")
                first = True
        sys.stdout.flush()
        after(table)
    if form is Format.json:
        out.write(b"]\n")
    sys.stdout.flush()


def _line(message: dict[str, Any]) -> str:
    """One line per message, whatever is in it."""
    if "payload" in message:
        payload = message["payload"].replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    else:
        payload = f"base64:{message['payload_base64']}"
    time = message["publish_time"]
    if not isinstance(time, str):  # text outside of Python's years
        time = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    more = {**(message["headers"] or {}), **message["columns"]}
    shown = " ".join(f"{name}={_value(value)}" for name, value in more.items())
    return f"{message['offset']}  {time}  {payload}{f'  [{shown}]' if shown else ''}"


def _value(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
