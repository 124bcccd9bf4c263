"""What tests of restores share: a repository, backups in it, and what a table has in each of its snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from frazil.backup.create import create_backup
from frazil.backup.format import BackupRecord
from frazil.backup.repository import Repository
from frazil.backup.restore import RestoreReport, run_restore
from frazil.backup.restore_plan import RestorePlan, RestoreTarget, plan_restore
from frazil.catalogs import local_path
from frazil.tables.relocation.engine import LocalEngine
from frazil.upkeep.context import UpkeepContext


def open_repository(care: UpkeepContext, root: str | None = None) -> Repository:
    model = care.settings.model
    return Repository.open(root or str(model.home / "backups"), s3=model.s3, network=model.network, create=True)


def back_up(care: UpkeepContext, repository: Repository, *names: str, name: str = "b1", **options: Any) -> BackupRecord:
    return create_backup(care, repository, names or ("ns.t",), name=name, engine="local", **options)


def plan(
    care: UpkeepContext, repository: Repository, record: BackupRecord, name: str = "ns.r", **options: Any
) -> RestorePlan:
    return plan_restore(care, repository, record, record.tables[0], RestoreTarget(name, **options))


def restore(
    care: UpkeepContext, repository: Repository, record: BackupRecord, name: str = "ns.r", **options: Any
) -> RestoreReport:
    return run_plan(care, repository, plan(care, repository, record, name, **options))


def run_plan(care: UpkeepContext, repository: Repository, planned: RestorePlan) -> RestoreReport:
    with LocalEngine(stop=care.stop) as engine:
        return run_restore(care, repository, planned, engine)


def history(table: Table) -> dict[str, Any]:
    """The rows of every snapshot, where each branch and tag points to, and what was current when."""
    metadata = table.refresh().metadata
    return {
        "rows": {s.snapshot_id: rows_at(table, s.snapshot_id) for s in metadata.snapshots},
        "refs": {name: ref.model_dump() for name, ref in metadata.refs.items()},
        "log": [(entry.snapshot_id, entry.timestamp_ms) for entry in metadata.snapshot_log],
        "schemas": [schema.model_dump() for schema in metadata.schemas],
        "specs": [spec.model_dump() for spec in metadata.partition_specs],
        "current": (metadata.current_snapshot_id, metadata.current_schema_id, metadata.default_spec_id),
    }


def rows_at(table: Table, snapshot_id: int | None = None) -> list[str]:
    found = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(repr(sorted(row.items())) for row in found)


@contextmanager
def moved_away(*folders: Path) -> Iterator[None]:
    """Without these folders, so that a forgotten path shows itself."""
    for folder in folders:
        folder.rename(folder.with_name(f"{folder.name}.away"))
    try:
        yield
    finally:
        for folder in folders:
            folder.with_name(f"{folder.name}.away").rename(folder)


def folder_of(location: str | None) -> Path:
    path = local_path(location or "")
    assert path is not None
    return Path(path)


def listing(folder: Path) -> dict[str, int]:
    """Every file below a folder, with its size."""
    return {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
