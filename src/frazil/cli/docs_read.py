"""`frazil docs get|list|history|stats`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.docs_filters import filtered
from frazil.cli.docs_session import (
    AsOf,
    DocumentId,
    Explain,
    Via,
    ViaChoice,
    explanation_of,
    moment,
    opened_store,
    print_document,
    print_explanation,
    reads_of,
    shown_tags,
    shown_time,
    shown_value,
)
from frazil.cli.invocation import Run
from frazil.cli.printing import json_text, plain_table, visible
from frazil.errors import UsageError

if TYPE_CHECKING:
    from frazil.documents.model import Document, Revision
    from frazil.documents.store import DocumentFilter, Page

_PAGE = 1_000


class SortChoice(StrEnum):
    created_at = "created_at"
    updated_at = "updated_at"
    filename = "filename"
    size_bytes = "size_bytes"
    document_id = "document_id"


#: These begin with the lowest value unless something else is asked for.
_ASCENDING = (SortChoice.filename, SortChoice.document_id)


def get(run: Run, document_id: DocumentId, as_of: AsOf = None) -> None:
    """Show a document: its metadata now, or as it was at a moment."""
    at = moment(as_of, "as_of")
    with opened_store(run) as store:
        found = store.get_metadata(document_id) if at is None else store.get_time_travel_snapshot(document_id, at)
    print_document(run, found)


@filtered
def list_(
    run: Run,
    where: DocumentFilter,
    as_of: AsOf = None,
    sort: Annotated[SortChoice, typer.Option(help="the order")] = SortChoice.created_at,
    ascending: Annotated[
        bool | None,
        typer.Option(
            "--ascending/--descending",
            help="lowest or highest first [default: ascending for filename and document_id]",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=_PAGE, help="documents of a page")] = 50,
    cursor: Annotated[
        str | None, typer.Option(metavar="TEXT", help="the page after the one that printed this cursor")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="all pages, one after the other")] = False,
    via: Via = ViaChoice.projection,
    explain: Explain = False,
) -> None:
    """List documents that match all filters, newest first."""
    at = moment(as_of, "as_of")
    options: dict[str, Any] = {
        "sort": sort.value, "descending": not (sort in _ASCENDING if ascending is None else ascending), "as_of": at,
    }  # fmt: skip
    if all_ and (cursor is not None or explain):
        other = "--explain is about one page" if explain else "--cursor does not"
        raise UsageError(f"--all begins with the first page, and {other}", hint="one of them")
    with opened_store(run) as store:
        reads = reads_of(store, via, explain=explain)
        if all_:
            _print_all(run, _pages(lambda after: reads.page(where, limit=_PAGE, cursor=after, **options)))
            return
        page = reads.page(where, limit=limit, cursor=cursor, **options)
        explanation = explanation_of(reads, explain=explain)
    if run.printer.json_output:
        found = {"documents": [d.to_dict() for d in page.documents], "next_cursor": page.next_cursor}
        run.printer.json(found | explanation)
        return
    run.printer.rows(_COLUMNS, [_row(document) for document in page.documents], none="no documents")
    if page.next_cursor is not None:
        run.printer.note(f"there are more; the next page: the same with --cursor {page.next_cursor}")
    print_explanation(run, explanation)


def history(run: Run, document_id: DocumentId) -> None:
    """Show all revisions of a document, oldest first, and what each changed. Deleted documents have one too."""
    with opened_store(run) as store:
        revisions = store.history(document_id)
    if run.printer.json_output:
        run.printer.json([revision.to_dict() for revision in revisions])
        return
    rows, before = [], None
    for revision in revisions:
        rows.append(
            [revision.revision, revision.operation, shown_time(revision.valid_from), _changes(before, revision)]
        )
        before = revision.document
    run.printer.rows(["revision", "operation", "valid from", "changes"], rows)


def stats(run: Run, as_of: AsOf = None, via: Via = ViaChoice.projection, explain: Explain = False) -> None:
    """Count documents and their bytes: by provider, tier and restore state."""
    from frazil.cli.amounts import shown_size

    at = moment(as_of, "as_of")
    with opened_store(run) as store:
        reads = reads_of(store, via, explain=explain)
        found = reads.get_statistics(as_of=at)
        explanation = explanation_of(reads, explain=explain)
    if run.printer.json_output:
        run.printer.json({**found, **explanation})
        return
    size = found["total_size_bytes"]
    print(f"documents  {found['total_documents']:,}\nsize       {shown_size(size)} ({size:,} bytes)")
    groups: dict[str, Mapping[str, int]] = {
        "provider": found["by_provider"], "tier": found["by_tier"], "restore status": found["by_restore_status"],
    }  # fmt: skip
    for name, counts in groups.items():
        rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if rows:
            print()
            run.printer.rows([name, "documents"], [[visible(value) or "-", f"{count:,}"] for value, count in rows])
    print_explanation(run, explanation)


def _pages(load: Callable[[str | None], Page]) -> Iterator[list[Document]]:
    page = load(None)
    yield page.documents
    while page.next_cursor is not None:
        page = load(page.next_cursor)
        yield page.documents


def _print_all(run: Run, pages: Iterator[list[Document]]) -> None:
    """Page by page, in bounded memory: JSON as one object, text with the widths of the first page."""
    if run.printer.json_output:
        separator = '{"documents": ['
        for documents in pages:
            for document in documents:
                print(separator + json_text(document.to_dict(), ascii_only=True), end="")
                separator = ",\n"
        print(('{"documents": [' if separator.startswith("{") else "") + '], "next_cursor": null}')
        return
    head: list[Any] = list(_COLUMNS)
    for number, documents in enumerate(pages):
        if not documents and number == 0:
            print("(no documents)")
        elif documents:
            lines = plain_table(head, [_row(document) for document in documents]).splitlines()
            print("\n".join(lines if number == 0 else lines[1:]))


_COLUMNS = ("document_id", "filename", "size", "tier", "restore", "created", "tags")


def _row(document: Document) -> list[Any]:
    from frazil.cli.amounts import shown_size

    return [
        document.document_id,
        visible(document.filename),
        None if document.size_bytes is None else shown_size(document.size_bytes),
        document.storage_tier,
        document.restore_status,
        document.created_at.strftime("%Y-%m-%d %H:%M"),
        shown_tags(document.tags) or None,
    ]


def _changes(before: Document | None, revision: Revision) -> str | None:
    """What a revision changed, as `field: value`; of the first one only the filename."""
    document = revision.document
    if revision.is_deleted:
        return None
    if before is None:
        return f"filename: {visible(document.filename)}"
    left_out = ("revision", "updated_at")
    names = dict.fromkeys((*before, *document))
    changed = []
    for name in names:
        old, new = (d.columns.get(name) if name not in _fields(d) else d[name] for d in (before, document))
        if old != new and name not in left_out:
            changed.append(f"{name}: {_short(shown_value(name, old))} → {_short(shown_value(name, new))}")
    return ", ".join(changed) or None


def _fields(document: Document) -> set[str]:
    return set(document) - set(document.columns)


def _short(value: Any) -> str:
    text = "-" if value in (None, "", "{}") else str(value)
    return text if len(text) <= 60 else text[:59] + "…"
