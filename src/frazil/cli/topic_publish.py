"""`frazil topic publish`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import Run
from frazil.cli.topic_progress import telling_progress
from frazil.cli.topic_session import TopicName, session
from frazil.errors import NotAllowedError, NotFoundError, UsageError

if TYPE_CHECKING:
    from frazil.log.batch import Batch
    from frazil.log.protocol import Ack, LogAccess

_READ_BYTES = 1024 * 1024


class LevelChoice(StrEnum):
    memory = "memory"
    os = "os"
    disk = "disk"


def publish(
    run: Run,
    topic: TopicName,
    message: Annotated[list[str] | None, typer.Argument(help="messages [default: standard input]")] = None,
    file: Annotated[Path | None, typer.Option(help="read the message from this file instead")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="publish each line of the input as a message")] = False,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="header of every message; may be repeated")
    ] = None,
    level: Annotated[
        LevelChoice | None, typer.Option(help="durability before the acknowledgement [default: from log.sync_mode]")
    ] = None,
    producer: Annotated[
        str | None, typer.Option(metavar="NAME", help="publish as this producer; retries are deduplicated")
    ] = None,
    batch: Annotated[bool, typer.Option("--batch", help="publish all messages as one atomic batch")] = False,
) -> None:
    """Publish messages, and print their offsets.

    Empty input publishes nothing. To publish an empty message on purpose, give it as an argument: ''
    """
    groups = _groups(message or [], file, lines=lines)
    if batch:
        whole = [m for group in groups for m in group]
        groups = iter([whole] if whole else [])
    headers = _headers(header or [])
    acks: list[Ack] = []
    with session(run) as at:
        sender = _Sender(at.access, topic, headers, level.value if level else None, producer)
        with telling_progress(acks) as under_way:
            for group in groups:
                under_way[:] = [len(group)]
                ack = sender.send(group)
                under_way.clear()
                acks.append(ack)
                if not run.printer.json_output:
                    print(_line(ack), flush=True)
    if run.printer.json_output:
        run.printer.json([ack.to_dict() for ack in acks])
    if not acks:
        raise UsageError(
            f"nothing was published to topic '{topic}'",
            cause=f"{'standard input' if file is None else file} is empty",
            hint=f"frazil topic publish {topic} ''  (if an empty message is meant)",
        )


def _groups(messages: list[str], file: Path | None, *, lines: bool) -> Iterator[list[bytes]]:
    """What goes into one batch each."""
    if messages and file is not None:
        raise UsageError("messages on the command line and --file exclude each other", hint="give one of them")
    if messages:
        if lines:
            raise UsageError("--lines requires --file or standard input", hint="give each message as an argument")
        return iter([[m.encode("utf-8", "surrogateescape")] for m in messages])
    if lines:
        return _lines(_chunks(file))
    whole = b"".join(_chunks(file))
    return iter([[whole]] if whole else [])


def _chunks(file: Path | None) -> Iterator[bytes]:
    if file is None and sys.stdin.isatty():
        print("reading from the terminal; press Ctrl-D to end", file=sys.stderr)
    descriptor = sys.stdin.fileno() if file is None else _opened(file)
    try:
        while chunk := os.read(descriptor, _READ_BYTES):
            yield chunk
    finally:
        if file is not None:
            os.close(descriptor)


def _opened(file: Path) -> int:
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFoundError(f"file not found: {file}", cause="", hint="give a file that exists") from error
    except OSError as error:
        raise NotAllowedError(
            f"cannot read {file}", cause=error.strerror, hint="give a file that you can read"
        ) from error


def _lines(chunks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines of an input: those that came together go together, so that nothing waits for more."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        if whole:
            yield [line.removesuffix(b"\r") for line in whole]
    if rest:
        yield [rest]


def _headers(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{text!r} is not a header", hint="--header name=value")
        found[name] = value
    return found


@dataclass
class _Sender:
    access: LogAccess
    topic: str
    headers: dict[str, str]
    level: str | None
    producer: str | None
    _identity: dict[str, int] = field(default_factory=dict)
    _sequence: int = 0

    def send(self, payloads: list[bytes]) -> Ack:
        from frazil.log.protocol import Level

        if self.producer is not None and not self._identity:
            given = self.access.register(self.topic, self.producer)
            self._identity = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
        level = None if self.level is None else Level(self.level)
        ack = self.access.append(self.topic, self._batch(payloads), level)
        self._sequence += 1
        return ack

    def _batch(self, payloads: list[bytes]) -> Batch:
        from frazil.log.batch import Batch, batch_with_headers

        producer: dict[str, Any] = {**self._identity, "sequence": self._sequence} if self._identity else {}
        if self.headers:
            count = len(payloads)
            return batch_with_headers(payloads, [None] * count, [self.headers] * count, **producer)
        return Batch.of_messages(payloads, **producer)


def _line(ack: Ack) -> str:
    if ack.offset < 0:
        where = f"{ack.count} messages, offsets not assigned yet"
    elif ack.count == 1:
        where = f"offset {ack.offset}"
    else:
        where = f"offsets {ack.offset} to {ack.offset + ack.count - 1}"
    return f"{ack.topic}: {where}, {ack.level}{', duplicate' if ack.duplicate else ''}"
