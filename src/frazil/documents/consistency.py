"""Checks that the parts of a store agree: its documents with their history, and the history with itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from frazil.documents.model import Revision
from frazil.documents.store import DocumentStore

_FINDINGS = 100


@dataclass
class ConsistencyReport:
    """What a check has found.

    Attributes:
        documents: that exist.
        revisions: of all documents, deleted ones too.
        findings: what is wrong, at most 100 of them.
    """

    documents: int = 0
    revisions: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.findings

    def add(self, finding: str) -> None:
        if len(self.findings) < _FINDINGS:
            self.findings.append(finding)

    def to_dict(self) -> dict[str, Any]:
        return {
            "documents": self.documents,
            "revisions": self.revisions,
            "sound": self.is_sound,
            "findings": self.findings,
        }


def check_consistency(store: DocumentStore, progress: Callable[[int], None] = lambda _: None) -> ConsistencyReport:
    """Reads all of a store. Writes that happen meanwhile may look like differences."""
    report = ConsistencyReport()
    for revisions in split_documents(store.revisions()):
        report.revisions += len(revisions)
        _check_history(revisions, report)
        progress(report.revisions)
    found = store.fingerprint(lambda count: progress(report.revisions + count))
    totals = store.get_statistics()
    report.documents = found.documents.count
    if found.listed != found.documents:
        report.add(
            f"the current documents are not the last revisions of the history: {found.listed.count:,} documents, and "
            f"{found.documents.count:,} by the history"
        )
    if totals["total_documents"] != found.documents.count:
        report.add(f"the statistics count {totals['total_documents']:,} documents")
    return report


def split_documents(batches: Iterable[Sequence[Revision]]) -> Iterator[list[Revision]]:
    """Returns the histories of single documents from batches that hold whole ones."""
    for batch in batches:
        for _, revisions in groupby(batch, key=lambda revision: revision.document_id):
            yield list(revisions)


def _check_history(revisions: Sequence[Revision], report: ConsistencyReport) -> None:
    document_id = revisions[0].document_id
    numbers = [revision.revision for revision in revisions]
    if numbers != list(range(1, len(numbers) + 1)):
        report.add(f"document '{document_id}' has gaps in its revisions: {numbers[:20]}")
    moments = [revision.valid_from for revision in revisions]
    if moments != sorted(moments):
        report.add(f"document '{document_id}' has revisions whose times run backwards")
