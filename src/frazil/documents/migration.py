"""Copies all documents with their history from one store to another, and proves that they are the same there.

No state is kept beside the stores: what the target has already says where an interrupted migration goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from frazil.documents.consistency import split_documents
from frazil.documents.fingerprint import Fingerprint
from frazil.documents.model import Column, Revision
from frazil.documents.store import DocumentStore, Statistics
from frazil.errors import ConflictError, IntegrityError

_NAMED = 10

Progress = Callable[[str, int], None]
"""Is told the phase, `compare`, `copy` or `verify`, and how many revisions of it are done."""


class Readable(Protocol):
    """The reads of a store that a migration needs."""

    def columns(self) -> dict[str, Column]: ...

    def get_statistics(self) -> Statistics: ...

    def revisions(self, after: str | None = None) -> Iterator[list[Revision]]: ...

    def history_tables(self, after: str | None = None) -> Iterator[pa.Table]: ...

    def fingerprint(
        self, progress: Callable[[int], None] = ..., *, canonical: bool = ..., lists: bool = ...
    ) -> Fingerprint: ...

    def last_change(self) -> datetime | None: ...


@dataclass(frozen=True)
class MigrationPlan:
    """What a migration would do.

    Attributes:
        documents: that the source has now.
        size_bytes: the sum of their sizes.
        columns: added columns that the target lacks.
        present: revisions that the target has already.
        after: the target has everything up to this document id; None: nothing.
    """

    source: str
    target: str
    documents: int
    size_bytes: int
    columns: Sequence[Column]
    present: int
    after: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "from": self.source,
            "to": self.target,
            "documents": self.documents,
            "size_bytes": self.size_bytes,
            "add_columns": [{"name": column.name, "type": column.type} for column in self.columns],
            "revisions_in_target": self.present,
            "resume_after": self.after,
        }


@dataclass(frozen=True)
class MigrationReport:
    """A migration that was verified.

    Attributes:
        loaded: revisions that this run has added to the target.
        fingerprint: of all documents and revisions, equal in both stores.
    """

    loaded: int
    fingerprint: Fingerprint

    def to_dict(self) -> dict[str, Any]:
        return {"revisions_loaded": self.loaded, "verified": self.fingerprint.to_dict()}


def plan_migration(
    source: Readable, target: Readable, names: tuple[str, str], progress: Progress = lambda *_: None
) -> MigrationPlan:
    """Compares what the target has with the source. Changes nothing.

    Args:
        source: is only read.
        target: empty, or with a part of what the source has.
        names: of both, for messages.
        progress: is called again and again, at most once per document.

    Raises:
        ConflictError: the target has other documents, another past of a document, or a column of another type.
    """
    columns = _missing_columns(source.columns(), target.columns(), names)
    totals = source.get_statistics()
    compared = _Comparison(names)
    for ours, theirs in _pairs(source, target, whole=False):
        compared.add(ours, theirs)
        progress("compare", compared.present)
    return MigrationPlan(
        *names, totals["total_documents"], totals["total_size_bytes"], columns, compared.present, compared.after
    )


def run_migration(
    source: Readable, target: DocumentStore, plan: MigrationPlan, progress: Progress = lambda *_: None
) -> MigrationReport:
    """Copies what is missing and verifies everything. May be killed at any point and repeated.

    Raises:
        ConflictError: the source was changed meanwhile; the message names the documents.
        IntegrityError: the target has not what was written to it.
    """
    for column in plan.columns:
        target.add_column(column.name, column.type)
    before = source.last_change()
    loaded, read_rows = 0, 0
    for revisions in source.history_tables(plan.after):
        loaded += target.load_table(revisions)
        read_rows += revisions.num_rows
        progress("copy", read_rows)
    target.refresh()
    read = source.last_change()
    verified = _verify(source, target, progress)
    now = source.last_change()
    if verified is None and now == before:
        raise IntegrityError(
            f"{plan.target} has not what was written to it: {_name_differences(source, target)}",
            cause="another process writes to it, or its storage is damaged",
            hint="migrate to an empty store",
        )
    if verified is None or now != read:
        raise ConflictError(
            f"{plan.source} was changed during the migration: {_name_differences(source, target)}",
            hint="repeat the migration, which copies what is new; for the last one, stop writes to the source",
        )
    if verified.listed != verified.documents:
        raise IntegrityError(
            f"{plan.target} lists other documents than its history has", hint="frazil docs verify, on the target"
        )
    return MigrationReport(loaded, verified)


def _missing_columns(wanted: Mapping[str, Column], there: Mapping[str, Column], names: tuple[str, str]) -> list[Column]:
    for column in wanted.values():
        found = there.get(column.name, column)
        if found.type != column.type:
            raise ConflictError(
                f"column '{column.name}' has type {column.type} in {names[0]}, and {found.type} in {names[1]}",
                hint="migrate to a store without it",
            )
    return [column for column in wanted.values() if column.name not in there]


@dataclass
class _Comparison:
    """What is known of the target after a walk through both stores by document id."""

    names: tuple[str, str]
    present: int = 0
    after: str | None = None
    _is_complete: bool = True

    def add(self, ours: Sequence[Revision], theirs: Sequence[Revision]) -> None:
        """Takes a document: what the target has of it, and what the source has."""
        if list(theirs[: len(ours)]) != list(ours):
            document_id = ours[0].document_id
            raise ConflictError(
                f"{self.names[1]} has {'another past of ' if theirs else ''}document '{document_id}'"
                + ("" if theirs else f", which is not in {self.names[0]}")
                + ", and nothing was migrated",
                hint="migrate to an empty store, or to one that only has a part of this migration",
            )
        self.present += len(ours)
        self._is_complete = self._is_complete and len(ours) == len(theirs)
        if self._is_complete:
            self.after = theirs[0].document_id


def _pairs(source: Readable, target: Readable, *, whole: bool) -> Iterator[tuple[list[Revision], list[Revision]]]:
    """Walks through both stores by document id, and yields what target and source have of each document.

    Args:
        source: the one.
        target: the other.
        whole: to the end of both, not only of the target.
    """
    theirs = split_documents(source.revisions())
    there = next(theirs, None)
    for ours in split_documents(target.revisions()):
        while there is not None and there[0].document_id < ours[0].document_id:
            yield [], there
            there = next(theirs, None)
        if there is None or there[0].document_id != ours[0].document_id:
            yield ours, []
        else:
            yield ours, there
            there = next(theirs, None)
    while whole and there is not None:
        yield [], there
        there = next(theirs, None)


def _verify(source: Readable, target: DocumentStore, progress: Progress) -> Fingerprint | None:
    """Reads all of both stores, and returns the fingerprint of the target; None if they are not equal."""
    for canonical in (False, True):  # JSON texts are nearly always equal, also in the order of their keys
        told = partial(_count_rows, progress, 0)
        wanted = source.fingerprint(told, canonical=canonical, lists=False)
        told = partial(_count_rows, progress, wanted.revisions.count + wanted.listed.count)
        found = target.fingerprint(told, canonical=canonical)
        if (found.revisions, found.documents) == (wanted.revisions, wanted.documents):
            return found
    return None


def _count_rows(progress: Progress, done: int, count: int) -> None:
    progress("verify", done + count)


def _name_differences(source: Readable, target: Readable) -> str:
    """Reads both stores again, and names the documents that are not equal."""
    ids = [(ours or theirs)[0].document_id for ours, theirs in _pairs(source, target, whole=True) if ours != theirs]
    count = "1 document differs" if len(ids) == 1 else f"{len(ids):,} documents differ"
    return f"{count} ({', '.join(ids[:_NAMED])}{', …' if len(ids) > _NAMED else ''})"
