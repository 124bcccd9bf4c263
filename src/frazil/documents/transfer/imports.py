"""Imports documents from a file: all of it is checked first, then it is loaded in bulk.

A repeated import of the same file changes nothing, so that an interrupted one is finished by repeating it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from frazil.documents import lifecycle
from frazil.documents.model import FIELD_NAMES, READ_ONLY, Column, Document, Revision
from frazil.documents.store import DocumentStore, Write
from frazil.documents.transfer import Format
from frazil.documents.transfer.checks import HistoryCheck, check_documents, explain, is_history
from frazil.documents.transfer.readers import BadRow, read_rows
from frazil.documents.transfer.spool import Spool, sort_revisions, stamp, to_revisions, without
from frazil.documents.transfer.values import json_text
from frazil.errors import ConflictError, FrazilError, UsageError

#: Bad rows that an error names.
SHOWN = 20
_WRITES = 1_000
_COMPARED = tuple(name for name in FIELD_NAMES if name not in READ_ONLY and name != "created_at")
_ATTEMPTS = 3

Progress = Callable[[str, int], None]
"""Is told what is done, `check` or `load`, and how many rows of it are."""


@dataclass
class ImportReport:
    """What an import did, in documents; `rows` and `bad` count rows of the file."""

    rows: int = 0
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    bad: int = 0

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass
class _BadRows:
    """Counts bad rows and writes them to a file; keeps only the first."""

    file: IO[bytes] | None
    count: int = 0
    first: list[BadRow] = field(default_factory=list)

    def add(self, rows: Sequence[BadRow]) -> None:
        self.count += len(rows)
        self.first.extend(rows[: SHOWN - len(self.first)])
        if self.file is not None:
            for row in rows:
                self.file.write(f"{json_text(asdict(row))}\n".encode(errors="replace"))

    def refuse(self, rows: int) -> UsageError:
        one = self.count == 1
        shown = sorted(self.first, key=lambda row: row.line)
        error = UsageError(
            f"{self.count:,} of {rows:,} rows {'is' if one else 'are'} bad, and nothing was imported",
            cause=f"line {shown[0].line:,}: {shown[0].reason}",
            hint="correct them, or import the others: --skip-bad bad.ndjson",
        )
        error.details["bad"] = [{"line": row.line, "reason": row.reason} for row in shown]
        error.details["rows"] = rows
        return error


def import_documents(
    store: DocumentStore,
    file: IO[bytes],
    form: Format,
    *,
    skip_bad: IO[bytes] | None = None,
    progress: Progress = lambda *_: None,
) -> ImportReport:
    """Creates and replaces the documents of a file, or loads whole histories if its rows are revisions.

    Args:
        store: the target.
        file: documents or revisions, as `export_documents` writes them; the former need only a filename.
        form: its format.
        skip_bad: bad rows go there as NDJSON, and the others are imported; None: one bad row refuses the file.
        progress: is called after each batch.

    Raises:
        UsageError: rows are bad; nothing was imported.
        ConflictError: the store was changed by others meanwhile; what was imported before stays.
    """
    now = datetime.now(UTC)
    bad = _BadRows(skip_bad)
    with Spool() as spool:
        loader = _check(store, file, form, spool, bad, now, progress)
        report = ImportReport(rows=spool.rows + bad.count)
        skipped = loader.find_refused(bad)
        if bad.count and skip_bad is None:
            raise bad.refuse(report.rows)
        report.bad = bad.count
        loader.load(report, skipped, progress)
    return report


def _check(
    store: DocumentStore,
    file: IO[bytes],
    form: Format,
    spool: Spool,
    bad: _BadRows,
    now: datetime,
    progress: Progress,
) -> _Loader:
    columns = store.columns()
    history: HistoryCheck | None = None
    is_first = True
    for rows in read_rows(file, form, columns):
        if is_first and rows.lines:
            is_first = False
            history = HistoryCheck(columns, now) if is_history(rows.at([0])[0]) else None
        checked, wrong = check_documents(rows, columns, now) if history is None else history.check(rows)
        spool.add(checked)
        bad.add(wrong)
        progress("check", spool.rows + bad.count)
    if history is not None:
        checked, wrong = history.finish()
        spool.add(checked)
        bad.add(wrong)
    spool.finish()
    return _Documents(store, spool, columns, now) if history is None else _Histories(store, spool)


class _Loader(Protocol):
    def find_refused(self, bad: _BadRows) -> AbstractSet[int]:
        """Reports the rows that the store would refuse, and returns the lines not to be loaded."""
        ...

    def load(self, report: ImportReport, skipped: AbstractSet[int], progress: Progress) -> None: ...


@dataclass
class _Documents:
    """Rows that are documents: each makes one revision, or none if the store has the document like that."""

    store: DocumentStore
    spool: Spool
    columns: Mapping[str, Column]
    checked_at: datetime

    def find_refused(self, bad: _BadRows) -> AbstractSet[int]:
        refused: dict[int, BadRow] = {}
        for line, (former, document_id) in self.spool.find_repeated().items():
            refused[line] = BadRow(
                line, f"line {former:,} has document '{document_id}' too", {"document_id": document_id}
            )
        for rows in self.spool.tables():
            existing = self.store.latest_revisions(_ids(rows))
            if not existing:
                continue
            for line, revision in zip(rows["line"].to_pylist(), to_revisions(rows), strict=True):
                current = existing.get(revision.document_id)
                if current is None or line in refused:
                    continue
                try:
                    self._change(current, revision, self.checked_at, self.checked_at)
                except FrazilError as error:
                    refused[line] = BadRow(line, explain(error), revision.document.to_dict())
        bad.add([refused[line] for line in sorted(refused)])
        return refused.keys()

    def load(self, report: ImportReport, skipped: AbstractSet[int], progress: Progress) -> None:
        for rows in self.spool.tables():
            remaining = without(rows, skipped)
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    moment = datetime.now(UTC)
                    self._load(stamp(remaining, self.checked_at, moment), moment, report)
                    break
                except ConflictError as error:  # a document was created or changed by somebody else meanwhile
                    if attempt == _ATTEMPTS:
                        raise error.adding(_describe_progress(report), **report.to_dict()) from error.__cause__
            progress("load", report.created + report.updated + report.unchanged)

    def _load(self, rows: pa.Table, moment: datetime, report: ImportReport) -> None:
        existing = self.store.latest_revisions(_ids(rows))
        is_known = pc.is_in(rows["document_id"], pa.array(existing, pa.string()))
        new = rows.filter(pc.invert(is_known))
        changes = [
            self._change(existing[revision.document_id], revision, moment, moment)
            for revision in to_revisions(rows.filter(is_known))
        ]
        self.store.load_table(sort_revisions(new))
        writes = [write for write in changes if write is not None]
        for start in range(0, len(writes), _WRITES):
            self.store.write(writes[start : start + _WRITES])
        report.created += new.num_rows
        report.updated += len(writes)
        report.unchanged += len(changes) - len(writes)

    def _change(
        self, current: Revision, wanted: Revision, created_unless_given: datetime, now: datetime
    ) -> Write | None:
        """Returns the write that makes the current document what a row says; None if it is so already."""
        document, before = wanted.document, current.document
        is_created_given = document.created_at != created_unless_given
        if not current.is_deleted and _has_same_fields(document, before, with_creation=is_created_given):
            return None
        values: dict[str, Any] = {name: value for name, value in document.items() if name not in READ_ONLY}
        if not is_created_given:
            del values["created_at"]
        lifecycle.put(current, values, self.columns, now)
        return Write("put", document.document_id, values)


def _has_same_fields(document: Document, other: Document, *, with_creation: bool) -> bool:
    return (
        all(getattr(document, name) == getattr(other, name) for name in _COMPARED)
        and document.columns == other.columns
        and (not with_creation or document.created_at == other.created_at)
    )


@dataclass
class _Histories:
    """Rows that are revisions: the histories of documents, which the store takes as they are."""

    store: DocumentStore
    spool: Spool

    def find_refused(self, bad: _BadRows) -> AbstractSet[int]:
        repeated = self.spool.find_repeated()
        refused: dict[int, BadRow] = {}
        for rows in self.spool.tables():
            existing = self.store.latest_revisions(_ids(rows))
            for lines, revisions in _histories(rows):
                reason = None
                if lines[0] in repeated:
                    reason = f"document '{revisions[0].document_id}' stands at line {repeated[lines[0]][0]:,} too"
                elif not self._is_same_past(existing.get(revisions[0].document_id), revisions):
                    reason = f"the store has another past of document '{revisions[0].document_id}'"
                if reason is not None:
                    refused |= {
                        line: BadRow(line, reason, revision.to_dict())
                        for line, revision in zip(lines, revisions, strict=True)
                    }
        bad.add([refused[line] for line in sorted(refused)])
        return refused.keys()

    def load(self, report: ImportReport, skipped: AbstractSet[int], progress: Progress) -> None:
        for rows in self.spool.tables():
            remaining = without(rows, skipped)
            existing = self.store.latest_revisions(_ids(remaining))
            try:
                self.store.load_table(sort_revisions(remaining))
            except ConflictError as error:
                raise error.adding(_describe_progress(report), **report.to_dict()) from error.__cause__
            last = remaining.group_by("document_id").aggregate([("revision", "max")]).to_pylist()
            known = [(existing[r["document_id"]], r["revision_max"]) for r in last if r["document_id"] in existing]
            updated = sum(number > latest.revision for latest, number in known)
            report.created += len(last) - len(known)
            report.updated += updated
            report.unchanged += len(known) - updated
            progress("load", report.created + report.updated + report.unchanged)

    def _is_same_past(self, latest: Revision | None, revisions: Sequence[Revision]) -> bool:
        """The store compares the former revisions when it loads."""
        if latest is None:
            return True
        if latest.revision <= len(revisions):
            return revisions[latest.revision - 1] == latest
        return self.store.history(latest.document_id)[: len(revisions)] == list(revisions)


def _ids(rows: pa.Table) -> list[str]:
    ids: list[str] = pc.unique(rows["document_id"]).to_pylist()
    return ids


def _histories(rows: pa.Table) -> Iterator[tuple[list[int], list[Revision]]]:
    """The documents of a batch, with the lines of their revisions; no batch splits a document.

    A document that stands at two places comes twice, also where what stood between them was bad.
    """
    lines: list[int] = []
    revisions: list[Revision] = []
    for line, revision in zip(rows["line"].to_pylist(), to_revisions(rows), strict=True):
        if revision.revision == 1 and revisions:
            yield lines, revisions
            lines, revisions = [], []
        lines.append(line)
        revisions.append(revision)
    if revisions:
        yield lines, revisions


def _describe_progress(report: ImportReport) -> str:
    done = report.created + report.updated
    return f"{done:,} documents were imported before, and a repeated import goes on from there"
