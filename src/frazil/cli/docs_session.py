"""What the commands of documents share: the open store, fields and times as typed, and how they are shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, Run
from frazil.cli.printing import visible
from frazil.errors import NotAllowedError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from frazil.documents.iceberg.store import IcebergDocumentStore
    from frazil.documents.iceberg.table_reads import TableReads
    from frazil.documents.model import Column, Document
    from frazil.documents.store import DocumentStore

SECTIONS = (*CATALOG_SECTIONS, "database", "documents", "log")

DocumentId = Annotated[str, typer.Argument(metavar="ID", help="the document's id")]
AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of", metavar="TIME", help="as it was then: 2026-01-31T12:00:00Z, epoch seconds or milliseconds, or 7d ago"
    ),
]
IfMatch = Annotated[
    int | None, typer.Option("--if-match", min=0, metavar="N", help="only if revision N is the latest one")
]
IdempotencyKey = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="TEXT", help="the same request with the same key is applied once"),
]
SetFields = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="a field or added column, may be repeated; no value clears it; settings too: database.url=…",
    ),
]


class ViaChoice(StrEnum):
    projection = "projection"
    table = "table"


Via = Annotated[
    ViaChoice,
    typer.Option(help="Iceberg: read the local projection, or the tables and the log's tail", show_default=True),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="with --via table: also show what was read and skipped of its files")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="NAME=VALUE", help="a tag; may be repeated")]
JsonSource = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="fields as a JSON object from this file; - is standard input"),
]


@contextmanager
def opened_store(run: Run) -> Iterator[DocumentStore]:
    """The store that the settings choose."""
    from frazil.documents.open import open_store

    with open_store(run.settings(*SECTIONS)) as store:
        yield store


def reads_of(store: DocumentStore, via: ViaChoice, *, explain: bool) -> DocumentStore | TableReads:
    """What answers the reads of a command.

    Raises:
        UsageError: the store has no tables, or nothing is to be explained.
    """
    if via is ViaChoice.projection:
        if explain:
            raise UsageError("--explain is about reads of the tables", hint="--via table --explain")
        return store
    if store.kind != "iceberg":
        raise UsageError(f"--via table is for the Iceberg store, and this is {store.kind}", hint="leave it out")
    return cast("IcebergDocumentStore", store).via_table(explains=explain)


def explanation_of(reads: DocumentStore | TableReads, *, explain: bool) -> dict[str, Any]:
    """What the last read has read and skipped, for JSON; nothing without --explain."""
    return {"explanation": cast("TableReads", reads).explanation.to_dict()} if explain else {}


def print_explanation(run: Run, explanation: Mapping[str, Mapping[str, Any]]) -> None:
    """The same for people. It is no result, and goes to standard error."""
    from frazil.cli.amounts import shown_size

    for found in explanation.values():
        run.printer.note(
            f"files: {found['files']:,}, of them skipped: {found['files_skipped']:,}\n"
            f"row groups: {found['row_groups'] or 0:,}, of them skipped: {found['row_groups_skipped'] or 0:,}\n"
            f"manifests: {found['manifests']:,}, of them skipped: {found['manifests_skipped']:,}, "
            f"fetched: {found['manifests_fetched']:,}\n"
            f"requests: {found['requests']:,}, for {shown_size(found['bytes'])}\n"
            f"messages from the log's tail: {found['tail_messages']:,}"
        )


def moment(text: str | None, name: str) -> datetime | None:
    """Returns a time as people write it, or how long ago it was."""
    from datetime import UTC, datetime, timedelta

    from frazil.cli.amounts import seconds
    from frazil.documents.model import parse_time

    if text is None:
        return None
    try:
        ago = seconds(text)
    except UsageError:
        return parse_time(text, name)
    try:
        return datetime.now(UTC) - timedelta(seconds=ago)
    except OverflowError:
        raise UsageError(f"{text} ago is before the year 1", hint="a shorter time, such as 52w") from None


def split_settings(run: Run, given: Sequence[str] | None) -> tuple[Run, dict[str, str]]:
    """Separates `--set FIELD=VALUE` from `--set KEY=VALUE` of settings, which every command takes."""
    from frazil.settings import SettingsModel

    settings, fields = [], {}
    for text in given or ():
        name, equals, value = text.partition("=")
        section, dot, _ = name.partition(".")
        if section in SettingsModel.model_fields and (dot or section in ("home", "cache")):
            settings.append(text)
        elif not equals or not name:
            raise UsageError(f"--set {text} has no value", hint="--set FIELD=VALUE")
        else:
            fields[name] = value
    return replace(run, set_=(*run.set_, *settings)), fields


def typed_fields(fields: Mapping[str, str], columns: Mapping[str, Column]) -> dict[str, Any]:
    """Returns texts in the types of their fields; an empty text clears the field."""
    from frazil.documents.transfer.values import parser_of

    return {name: parser_of(name, columns)(text) if text else None for name, text in fields.items()}


def tags_of(given: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--tag {text} has no value", hint="--tag NAME=VALUE")
        found[name] = value
    return found


def read_object(source: str) -> dict[str, Any]:
    """Returns the JSON object of a file, or of standard input."""
    from frazil.documents.transfer.values import parse_json

    text = read_source(source)
    try:
        found = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{shown_source(source)} is no JSON", cause=str(error), hint='{"filename": "a.pdf"}'
        ) from error
    if not isinstance(found, dict):
        raise UsageError(
            f"{shown_source(source)} is no JSON object", hint="one object; for many documents: frazil docs import"
        )
    return found


def read_source(source: str) -> bytes:
    from pathlib import Path

    if source == "-":
        if sys.stdin.isatty():
            print("reading from the terminal; Ctrl-D ends", file=sys.stderr)
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise unreadable(source, error) from error


def unreadable(source: str, error: OSError) -> NotFoundError | NotAllowedError:
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"file {source} does not exist", cause="", hint="the name of a file; - is standard input")
    return NotAllowedError(f"file {source} cannot be read", cause=error.strerror, hint="a file that you may read")


def shown_source(source: str) -> str:
    return "standard input" if source == "-" else f"file {source}"


# -- for people --------------------------------------------------------------------------------------------------------


def print_document(run: Run, document: Document) -> None:
    if run.printer.json_output:
        run.printer.json(document.to_dict())
    else:
        run.printer.record(shown_document(document))


def shown_document(document: Document) -> dict[str, Any]:
    """All fields that have a value, as text; the id and the revision first."""
    shown: dict[str, Any] = {"document_id": document.document_id, "revision": document.revision}
    for name, value in document.items():
        if value is not None and value != {} and name not in shown:
            shown[name] = shown_value(name, value)
    return shown


def shown_value(name: str, value: Any) -> Any:
    from datetime import datetime

    from frazil.cli.amounts import shown_size

    if name == "size_bytes" and value is not None:
        return f"{value:,} bytes ({shown_size(value)})" if value >= 1024 else f"{value} bytes"
    if name == "tags":
        return shown_tags(value)
    if isinstance(value, datetime):
        return shown_time(value)
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        from frazil.cli.printing import json_text

        return visible(json_text(value))
    return value


def shown_tags(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{visible(name)}={visible(value)}" for name, value in sorted(tags.items()))


def shown_time(time: datetime | None) -> str | None:
    from frazil.documents.model import plain_time

    if time is None:
        return None
    text: str = plain_time(time)
    return text.replace(".000000Z", "Z")


@contextmanager
def progress(run: Run, *phases: str) -> Iterator[Callable[[str, int], None]]:
    """Shows on a terminal how many rows each phase is done with. It goes away at the end."""
    if run.printer.json_output or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        tasks = {phase: shown.add_task(phase, total=None, visible=False) for phase in phases}
        due = 0.0

        def update(phase: str, count: int) -> None:
            nonlocal due
            if (now := time.monotonic()) < due:
                return
            due = now + 0.1
            task = tasks[phase]
            shown.update(task, visible=True, completed=count, description=f"{phase}: {count:,}")

        yield update
