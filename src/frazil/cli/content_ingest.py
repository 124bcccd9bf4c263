"""`frazil content ingest`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.invocation import Run
from frazil.cli.stopping import Stopping
from frazil.errors import FrazilError, InterruptedByUser, PartialError, UsageError

if TYPE_CHECKING:
    from frazil.content.intake.files import FileIntake
    from frazil.content.intake.messages import Taken
    from frazil.content.intake.sqs import Polling
    from frazil.log.protocol import LogAccess
    from frazil.settings import Settings

#: Seconds after a signal in which the process is gone, whatever hangs.
_TO_END_S = 30.0
_SECTIONS = ("log", "content", "s3")
_AGAIN = "run the same command again: duplicates are harmless"


class DialectChoice(StrEnum):
    auto = "auto"
    aws = "aws"
    minio = "minio"
    ceph = "ceph"
    versitygw = "versitygw"
    other = "other"


def ingest(
    run: Run,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE…", help="files of JSON lines, documents or arrays; - reads standard input"),
    ] = None,
    sqs: Annotated[
        str | None, typer.Option("--sqs", metavar="URL", help="receive events from this SQS queue instead")
    ] = None,
    endpoint_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="endpoint of the queue [default: from its URL, or AWS_ENDPOINT_URL_SQS]"),
    ] = None,
    receivers: Annotated[
        int | None,
        typer.Option(min=1, max=64, metavar="N", help="concurrent receivers [default: 1]"),
    ] = None,
    for_: Annotated[str | None, typer.Option("--for", metavar="TIME", help="stop after this time, such as 10m")] = None,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="stop when the queue is empty")] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="PORT", help="serve Prometheus metrics at this address while running"),
    ] = None,
    dialect: Annotated[
        DialectChoice | None, typer.Option(help="dialect of the events [default: content.dialect]")
    ] = None,
) -> None:
    """Ingest events of object stores into the log: from files, from standard input, or from an SQS queue.

    Events are on disk when the command prints them, and only then are messages deleted from the queue. Lines that are
    not JSON are stored too, as dead letters. From a queue, it receives until Ctrl-C or SIGTERM, or until --for or
    --until-empty applies.
    """
    fixed = None if dialect is None else dialect.value
    of_queue = {
        "--endpoint-url": endpoint_url, "--receivers": receivers, "--for": for_,
        "--until-empty": until_empty or None, "--metrics-port": metrics_port,
    }  # fmt: skip
    if sqs is None:
        if given := [name for name, value in of_queue.items() if value is not None]:
            raise UsageError(f"{given[0]} requires --sqs", hint=f"--sqs URL, or leave out {given[0]}")
        _ingest_files(run, files or [], fixed)
        return
    if files:
        raise UsageError("files and --sqs exclude each other", hint="give one of them")
    from frazil.cli.amounts import seconds
    from frazil.content.intake.sqs import Polling

    polling = Polling(receivers or 1, None if for_ is None else seconds(for_), until_empty)
    _ingest_queue(run, sqs, endpoint_url, polling, fixed, metrics_port)


def _ingest_files(run: Run, files: list[str], dialect: str | None) -> None:
    from frazil.content.intake.files import STDIN, FileIntake, check_files

    if not files:
        raise UsageError("no source of events was given", hint="a file, - for standard input, or --sqs URL")
    check_files(files)
    if STDIN in files and sys.stdin.isatty():
        run.printer.note("reading from the terminal; press Ctrl-D to end")
    settings = run.settings(*_SECTIONS)
    limit = settings.model.log.max_message_size
    with _stopping(run) as stopping, _log(run, settings) as (access, topic):
        intake = FileIntake(access, topic, limit, dialect)
        stopping.be_gentle()
        with _telling(intake):
            for name in files:
                intake.take(name, stopping.asked)
    if run.printer.json_output:
        run.printer.json(intake.to_dict())
    else:
        print(_line(intake.taken))
    if intake.not_json:
        run.printer.note(f"note: {intake.not_json} messages are not JSON objects and will become dead letters")
    if intake.too_large:
        raise PartialError(
            f"{intake.too_large} lines exceed the size limit of a message and were skipped",
            cause=f"log.max_message_size is {limit:,} bytes",
            hint="raise log.max_message_size and ingest the same file again: duplicates are harmless",
        )


@contextmanager
def _telling(intake: FileIntake) -> Iterator[None]:
    """Whatever ends the block says what is in the log."""
    try:
        yield
    except FrazilError as error:
        told = error
        if intake.taken.messages and not isinstance(error, InterruptedByUser):
            told = PartialError("ingesting events failed part-way", cause=error.in_one_line, hint=_AGAIN)
        text = f"{intake.taken.messages} messages are in the log"
        if intake.under_way:
            text += f"; whether the next {intake.under_way} were appended is not known"
        raise told.adding(text, **intake.to_dict(), unknown=intake.under_way) from error.__cause__


def _ingest_queue(
    run: Run, url: str, endpoint_url: str | None, polling: Polling, dialect: str | None, metrics_port: int | None
) -> None:
    from frazil.content.intake.queue import open_queue
    from frazil.content.intake.sqs import SqsIntake

    settings = run.settings(*_SECTIONS)
    model = settings.model
    queue = open_queue(url, model.s3, model.network, endpoint_url=endpoint_url, receivers=polling.receivers)
    with (
        _stopping(run) as stopping,
        _log(run, settings) as (access, topic),
        _answering_prometheus(run, settings, metrics_port),
    ):
        intake = SqsIntake(queue, access, topic, polling, dialect)
        stopping.be_gentle()
        run.printer.note(f"receiving events from {url}; press Ctrl-C or send SIGTERM to stop")
        try:
            intake.run(stopping.asked)
        except FrazilError as error:
            error.adding(f"{intake.taken.messages} messages were ingested before the failure", **intake.to_dict())
            raise
    if run.printer.json_output:
        run.printer.json(intake.to_dict())
    else:
        print(f"{_line(intake.taken)}; deleted from the queue: {intake.deleted}")
    if intake.undeleted:
        run.printer.note(f"note: {intake.undeleted} messages could not be deleted from the queue and will come again")
    if intake.refused:
        run.printer.note(f"note: {intake.refused} messages were rejected by the log and stay in the queue")


def _stopping(run: Run) -> Stopping:
    def late() -> FrazilError:
        return PartialError(f"the command did not exit within {_TO_END_S:g} s", hint=_AGAIN)

    return Stopping(_TO_END_S, late, kill=lambda: None, json_output=run.printer.json_output)


def _answering_prometheus(run: Run, settings: Settings, port: int | None) -> AbstractContextManager[None]:
    if port is None:
        return nullcontext()
    from frazil.cli.pipeline import answering_prometheus

    pipeline = settings.model.pipeline.model_copy(update={"metrics_port": port})
    return answering_prometheus(settings.model.model_copy(update={"pipeline": pipeline}), run.printer.note)


@contextmanager
def _log(run: Run, settings: Settings) -> Iterator[tuple[LogAccess, str]]:
    """The log, at a broker or opened here, and the name of the topic, which is there now."""
    from frazil.content.topic import ensure_events_topic
    from frazil.topics.connection import connect

    with connect(settings, note=lambda text: run.printer.note(f"note: {text}")) as access:
        yield access, ensure_events_topic(access, settings).name


def _line(taken: Taken) -> str:
    if taken.first_offset is None:
        return f"{taken.topic}: no messages"
    one = taken.messages == 1
    where = f"offset {taken.first_offset}" if one else f"offsets {taken.first_offset} to {taken.last_offset}"
    return f"{taken.topic}: {taken.messages} {'message' if one else 'messages'}, {taken.bytes:,} bytes, {where}, disk"
