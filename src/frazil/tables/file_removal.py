"""Takes whole data files out of a table, without reading one. Retention is this."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import ROWS_MUST_MATCH, _StrictMetricsEvaluator
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Operation

from frazil.observe.faultpoints import reach
from frazil.tables.commit import apply_response, discard_replaced_metadata
from frazil.tables.commit_draft import Draft, build_draft, read_live_manifests
from frazil.tables.commit_retry import commit_with_retry
from frazil.tables.create import require_writable
from frazil.tables.manifest_writer import ManifestWriter
from frazil.tables.store import TableStore

if TYPE_CHECKING:
    from pyiceberg.table import Table

_TRIES = 30
Test = Callable[[DataFile], bool]


@dataclass(frozen=True)
class RemovedFiles:
    """What was taken out. The files themselves stay in storage until the snapshots that hold them are expired."""

    table: Table
    files: int = 0
    rows: int = 0
    size: int = 0


def list_data_files(store: TableStore, table: Table) -> list[DataFile]:
    """Lists the data files of the current snapshot, from manifests alone."""
    shop = ManifestWriter(store, table)
    return [
        entry.data_file
        for manifest in read_live_manifests(store, table)
        if manifest.content == ManifestContent.DATA
        for entry in shop.entries(manifest)
    ]


def remove_files(store: TableStore, table: Table, which: Iterable[str] | BooleanExpression | Test) -> RemovedFiles:
    """Removes data files in one commit of metadata; positions stay as they are. Nothing to remove, no commit.

    Args:
        store: where.
        table: may be out of date.
        which: paths; or an expression, for files whose bounds prove that it holds for every row; or a function.

    Raises:
        ConflictError: other writers were faster too often. Nothing was removed.
        UnavailableError: the catalog gives no answer. The call may be repeated.
    """
    require_writable(table)
    test = which if callable(which) and not isinstance(which, BooleanExpression) else None
    paths = frozenset(which) if test is None and not isinstance(which, BooleanExpression) else frozenset()  # type: ignore[arg-type]
    removed = RemovedFiles(table)

    def prepare(now: Table) -> Draft | None:
        nonlocal removed
        chosen = test or (_proven(now, which) if isinstance(which, BooleanExpression) else _named(paths))
        drafted = _draft(store, now, chosen)
        if drafted is None:
            return None  # after an attempt without an answer: it has landed, and there is nothing left to remove
        draft, removed = drafted
        return draft

    def commit(_: Table, draft: Draft) -> Table:
        reach("tables.remove.before")
        response = store.call_once(lambda: store.catalog.commit_table(draft.base, draft.requirements, draft.updates))
        reach("tables.remove.after")
        after = apply_response(draft.base, response.metadata, response.metadata_location)
        store.cache_manifests(draft.snapshot.manifest_list, draft.manifests)
        discard_replaced_metadata(store, draft, after)
        return after

    table = commit_with_retry(store, table, prepare, commit, tries=_TRIES)
    return replace(removed, table=table)


def _proven(table: Table, expression: BooleanExpression) -> Test:
    evaluate = _StrictMetricsEvaluator(table.schema(), expression).eval
    return lambda file: bool(evaluate(file) == ROWS_MUST_MATCH)


def _named(paths: frozenset[str]) -> Test:
    return lambda file: file.file_path in paths


def _draft(store: TableStore, base: Table, chosen: Test) -> tuple[Draft, RemovedFiles] | None:
    shop = ManifestWriter(store, base)
    manifests: list[ManifestFile] = []
    removed: list[DataFile] = []
    for manifest in read_live_manifests(store, base):
        if manifest.content != ManifestContent.DATA:
            manifests.append(manifest)
            continue
        living = shop.entries(manifest)
        going = [e for e in living if chosen(e.data_file)]
        if not going:
            manifests.append(manifest)
            continue
        removed += [e.data_file for e in going]
        paths = {e.data_file.file_path for e in going}
        staying = [e for e in living if e.data_file.file_path not in paths]
        manifests.append(shop.rewritten(manifest.partition_spec_id, staying, going))
    if not removed:
        return None
    draft = build_draft(base, shop, manifests, Operation.DELETE, removed=removed)
    rows, size = sum(f.record_count for f in removed), sum(f.file_size_in_bytes for f in removed)
    return draft, RemovedFiles(base, len(removed), rows, size)
