"""`frazil docs import|export`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from frazil.cli.docs_filters import filtered, has_filters
from frazil.cli.docs_session import AsOf, moment, opened_store, progress, unreadable
from frazil.cli.invocation import Run
from frazil.errors import UsageError

if TYPE_CHECKING:
    from frazil.documents.store import DocumentFilter
    from frazil.documents.transfer import Format
    from frazil.documents.transfer.imports import ImportReport


class FormatChoice(StrEnum):
    csv = "csv"
    ndjson = "ndjson"
    parquet = "parquet"


FormatOption = Annotated[FormatChoice | None, typer.Option("--format", help="[default: by the name of the file]")]


def import_(
    run: Run,
    file: Annotated[str, typer.Argument(metavar="FILE", help="CSV, NDJSON or Parquet; - is standard input")],
    form: FormatOption = None,
    skip_bad: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="import the other rows, and write bad ones with their reasons here, as NDJSON"
        ),
    ] = None,
) -> None:
    """Create and replace documents from a file, or load whole histories from an export with --history.

    The whole file is checked first: with a bad row nothing is imported. Importing the same file again changes nothing,
    and finishes what was interrupted. Rows without a document_id get one that depends on their content.
    """
    from frazil.cli.results import check_output, written_file
    from frazil.documents.transfer.imports import import_documents

    chosen = _format(form, file)
    if skip_bad is not None:
        check_output("ndjson", skip_bad)
    with ExitStack() as stack:
        source = stack.enter_context(_opened(file, needs_seek=chosen == "parquet"))
        store = stack.enter_context(opened_store(run))
        bad = None if skip_bad is None else stack.enter_context(written_file(skip_bad))
        show = stack.enter_context(progress(run, "check", "load"))
        try:
            report = import_documents(store, source, chosen, skip_bad=bad, progress=show)
        except UsageError as error:
            _print_bad(run, error)
            raise
    _print_report(run, report, skip_bad)


def _print_bad(run: Run, error: UsageError) -> None:
    rows = error.details.get("bad", [])
    if run.printer.json_output or len(rows) < 2:
        return
    for row in rows:
        run.printer.note(f"line {row['line']:,}: {row['reason']}")


def _print_report(run: Run, report: ImportReport, skip_bad: Path | None) -> None:
    if run.printer.json_output:
        run.printer.json(report.to_dict())
    else:
        print(f"{report.created:,} created, {report.updated:,} replaced, {report.unchanged:,} unchanged")
    if report.bad:
        verb = "is" if report.bad == 1 else "are"
        run.printer.note(f"{report.bad:,} of {report.rows:,} rows {verb} bad, and in {skip_bad}")


@filtered
def export(
    run: Run,
    where: DocumentFilter,
    file: Annotated[str, typer.Argument(metavar="FILE", help="CSV, NDJSON or Parquet; - is standard output")],
    form: FormatOption = None,
    history: Annotated[
        bool, typer.Option("--history", help="all revisions of all documents, also of deleted ones")
    ] = False,
    as_of: AsOf = None,
    force: Annotated[bool, typer.Option("--force", help="replace a file that exists")] = False,
) -> None:
    """Write documents that match all filters to a file, which `frazil docs import` reads again.

    With --history nothing is lost: an import of that file makes the same revisions with the same moments.
    """
    from frazil.cli.results import check_output, written_file
    from frazil.documents.transfer.exports import export_documents, export_history

    at = moment(as_of, "as_of")
    if history and (at is not None or has_filters(where)):
        raise UsageError("--history exports all revisions, and filters or --as-of choose some", hint="one of them")
    chosen = _format(form, file)
    out = None if file == "-" else Path(file)
    if out is not None and out.is_file() and not force:
        raise UsageError(f"{out} exists already", hint="--force to replace it, or another name")
    check_output(chosen, out)
    with opened_store(run) as store, progress(run, "export") as show, written_file(out) as target:
        if history:
            count = export_history(store, target, chosen, progress=lambda done: show("export", done))
        else:
            count = export_documents(store, target, chosen, where, as_of=at, progress=lambda done: show("export", done))
    what = "revisions" if history else "documents"
    if run.printer.json_output and out is not None:
        run.printer.json({"file": str(out), "format": chosen, what: count})
    else:
        run.printer.note(f"{count:,} {what} written{'' if out is None else f' to {out}'}")


def _format(form: FormatChoice | None, name: str) -> Format:
    from frazil.documents.transfer import format_of

    if form is not None:
        return form.value
    if name == "-":
        raise UsageError("the format of standard input or output is not known", hint="--format ndjson")
    return format_of(name)


@contextmanager
def _opened(name: str, *, needs_seek: bool) -> Iterator[IO[bytes]]:
    """The file to read; standard input as a temporary file where the format has to go back and forth in it."""
    import shutil
    import tempfile

    if name != "-":
        try:
            file = Path(name).open("rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise unreadable(name, error) from error
        with file:
            yield file
        return
    if sys.stdin.isatty():
        print("reading from the terminal; Ctrl-D ends", file=sys.stderr)
    if not needs_seek:
        yield sys.stdin.buffer
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.seek(0)
        yield copy
