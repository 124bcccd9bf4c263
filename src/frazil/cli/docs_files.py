"""`frazil docs add|fetch|restore-request`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from frazil.cli.docs_session import (
    SECTIONS,
    AsOf,
    DocumentId,
    Tags,
    moment,
    read_object,
    shown_time,
    tags_of,
)
from frazil.cli.invocation import Run, command
from frazil.cli.printing import visible
from frazil.errors import FrazilError, PartialError, UsageError

if TYPE_CHECKING:
    from frazil.documents.files import Added
    from frazil.documents.restores import Requested
    from frazil.documents.store import DocumentStore
    from frazil.settings import SettingsModel

T = TypeVar("T")


class Tier(StrEnum):
    standard = "standard"
    infrequent = "infrequent"
    archive = "archive"
    deep_archive = "deep_archive"


class RestoreChoice(StrEnum):
    standard = "Standard"
    bulk = "Bulk"
    expedited = "Expedited"


def register(app: typer.Typer) -> None:
    """Adds the commands of files to those of documents."""
    command(app, example="frazil docs add report.pdf --to s3://bucket/2026 --storage-tier archive")(add)
    command(app, example="frazil docs fetch abc123 --out report.pdf")(fetch)
    command(app, "restore-request", example="frazil docs restore-request abc123 --days 7 --tier Bulk")(restore_request)


def add(
    run: Run,
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="files to upload")],
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help="s3://bucket/prefix, or a folder")],
    storage_tier: Annotated[
        Tier, typer.Option("--storage-tier", help="tier of the objects; a folder has only standard")
    ] = Tier.standard,
    tag: Tags = None,
    attributes: Annotated[
        str | None, typer.Option(metavar="FILE", help="their attributes: a JSON object; - is standard input")
    ] = None,
    content_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="such as application/pdf [default: by the file's name]")
    ] = None,
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="who stores the objects [default: by the place: aws, s3, local]")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="an object of this name with another content, or in another tier, too")
    ] = False,
) -> None:
    """Upload files, verify their checksums, and register them as documents.

    After an interruption, run the same command again: what is there already is recognised, and nothing is doubled.
    """
    from frazil.documents.files import AddOptions, add_file

    options = AddOptions(
        tier=storage_tier.value,
        content_type=content_type,
        tags=tags_of(tag),
        attributes={} if attributes is None else read_object(attributes),
        provider=provider,
        replace=replace,
    )
    with _opened(run) as (store, settings):
        _each(
            run,
            files,
            lambda file: add_file(store, settings, file, to, options),
            lambda added: _added_line(added, storage_tier),
        )


def _added_line(added: Added, tier: Tier) -> str:
    document = added.document
    line = f"{document.document_id}: {added.outcome}, {visible(added.uri)}"
    if document.storage_tier != tier.value:
        line += f" (in tier '{document.storage_tier}'; to upload it to '{tier.value}': --replace)"
    return line


def fetch(
    run: Run,
    document_id: DocumentId,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="file or folder [default: the document's name, here]")
    ] = None,
    as_of: AsOf = None,
    replace: Annotated[bool, typer.Option("--replace", help="replace a file that exists")] = False,
) -> None:
    """Bring the file of a document back. It appears whole, with its checksum verified, or not at all."""
    from frazil.documents.files import fetch_file

    when = moment(as_of, "--as-of")
    with _opened(run) as (store, settings):
        fetched = fetch_file(store, settings, document_id, out, as_of=when, replace=replace)
    if run.printer.json_output:
        run.printer.json(fetched.to_dict())
        return
    verified = "checksum verified" if fetched.is_verified else "not verified: the document has no such checksum"
    print(f"{visible(str(fetched.path))}: {fetched.size:,} bytes, {verified}")


def restore_request(
    run: Run,
    ids: Annotated[list[str], typer.Argument(metavar="ID…", help="ids of documents")],
    days: Annotated[int, typer.Option(min=1, metavar="N", help="days that the readable copy stays")] = 7,
    tier: Annotated[
        RestoreChoice, typer.Option(help="Standard: hours; Bulk: cheaper, up to two days; Expedited: minutes")
    ] = RestoreChoice.standard,
) -> None:
    """Ask S3 for readable copies of archived documents, and record the state of their restore.

    The documents keep their tier. When the copy is there, `docs fetch` brings it; object events record it at once,
    where the bucket's events are followed (`documents.follow_buckets`).
    """
    from frazil.documents.restores import request_restore

    with _opened(run) as (store, settings):
        _each(
            run,
            ids,
            lambda document_id: request_restore(store, settings, document_id, days=days, tier=tier.value),
            _requested_line,
        )


def _requested_line(requested: Requested) -> str:
    document = requested.document
    line = f"{document.document_id}: {requested.outcome}, restore_status {document.restore_status}"
    if document.restore_expiry is not None:
        line += f" until {shown_time(document.restore_expiry)}"
    return line


@contextmanager
def _opened(run: Run) -> Iterator[tuple[DocumentStore, SettingsModel]]:
    from frazil.documents.open import open_store

    settings = run.settings(*SECTIONS)
    with open_store(settings) as store:
        yield store, settings.model


def _each(run: Run, given: Sequence[T], do: Callable[[T], Any], line: Callable[[Any], str]) -> None:
    """Does something with each, also after one has failed, and prints what came of it.

    Raises:
        PartialError: some failed.
        FrazilError: the only one failed.
    """
    if not given:
        raise UsageError("nothing is given", hint="--help")
    done: list[Any] = []
    failed: list[dict[str, Any]] = []
    for each in given:
        try:
            made = do(each)
        except FrazilError as error:
            if len(given) == 1:
                raise
            failed.append({"for": str(each), **error.to_dict()})
            hint = f"\n  Try: {error.hint}" if error.hint else ""
            run.printer.note(f"error: {visible(str(each))}: {error.in_one_line}{hint}")
        else:
            done.append(made)
            if not run.printer.json_output:
                print(line(made), flush=True)
    if run.printer.json_output:
        run.printer.json([made.to_dict() for made in done])
    if failed:
        partial = PartialError(f"{len(failed)} of {len(given)} failed", hint="the same command again does the rest")
        partial.details["failed"] = failed
        raise partial
