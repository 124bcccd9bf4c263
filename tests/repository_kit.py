"""Backup repositories for tests, with backups of made-up tables: no Iceberg, no JVM."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from frazil.backup.completeness import check_marks
from frazil.backup.format import (
    BackedUpTable,
    BackupRecord,
    BlobRef,
    CopiedFile,
    ManifestState,
    PathBlob,
    TableState,
)
from frazil.backup.references import iterate_references, key_of
from frazil.backup.repository import DataSource, Repository
from frazil.settings.model import NetworkSettings, S3Settings

S3, NETWORK = S3Settings(), NetworkSettings(connect_timeout=30)
WAIT = 86400.0


def open_local(folder: Path, *, create: bool = True) -> Repository:
    return Repository.open(str(folder), s3=S3, network=NETWORK, create=create)


def write_sources(folder: Path, contents: Mapping[str, bytes]) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


def store_table(
    repository: Repository, sources: Mapping[str, Path], *, uuid: str = "table-1", per_manifest: int = 2
) -> BackedUpTable:
    """Stores a table with these data files; what stands for its metadata depends on their names alone."""
    names = sorted(sources)
    manifests, total = [], 0
    for start in range(0, len(names), per_manifest):
        files = []
        for name in names[start : start + per_manifest]:
            blob = repository.put_data(DataSource(str(sources[name]), None, S3, NETWORK))
            files.append(CopiedFile(f"s3://lake/{uuid}/data/{name}", blob.size, blob.sha256, 0, "PARQUET"))
            total += blob.size
        manifest = repository.put_meta(f"manifest of {[f.path for f in files]}".encode())
        path = f"s3://lake/{uuid}/metadata/m{start}.avro"
        manifests.append(ManifestState(path, manifest, repository.put_files(files), 0, len(files), total))
    metadata = PathBlob(f"s3://lake/{uuid}/metadata/v1.json", repository.put_meta(f"metadata {names}".encode()))
    lists = (PathBlob(f"s3://lake/{uuid}/metadata/snap.avro", repository.put_meta(f"list {names}".encode())),)
    state = TableState(metadata, lists, tuple(manifests), (), (f"s3://lake/{uuid}",))
    return BackedUpTable(
        identifier=("demo", uuid), catalog="frazil", catalog_kind="sql", uuid=uuid, location=f"s3://lake/{uuid}",
        format_version=2, current_snapshot_id=2**62, snapshots=1, refs=("main",), files=len(names), bytes=total,
        new_files=len(names), new_bytes=total, metadata_bytes=1, state=repository.put_state(state),
    )  # fmt: skip


def record_of(
    repository: Repository,
    name: str,
    *tables: BackedUpTable,
    started: datetime | None = None,
    at: datetime | None = None,
) -> BackupRecord:
    now = repository.now()
    return BackupRecord(
        name, f"id-of-{name}", started or now, at or now, "0.1.0", "copied", repository.lock_until, tables
    )


def back_up(
    repository: Repository,
    name: str,
    sources: Mapping[str, Path],
    *,
    uuid: str = "table-1",
    wait_s: float = WAIT,
    at: datetime | None = None,
) -> BackupRecord:
    """A create as the product does it: store, check the marks, write the record."""
    started = repository.now()
    table = store_table(repository, sources, uuid=uuid)
    while check_marks(repository, [table], started, prune_wait_s=wait_s):
        table = store_table(repository, sources, uuid=uuid)
    return repository.write_record(record_of(repository, name, table, started=started, at=at), prune_wait_s=wait_s)


def missing_blobs(repository: Repository, record: BackupRecord) -> list[str]:
    """What a record needs and the repository does not have."""
    found = []
    try:
        for kind, blob in iterate_references(repository, record.tables):
            if not (repository.has_data(blob) if kind == "data" else repository.has_meta(blob)):
                found.append(key_of(kind, blob))
    except Exception as error:  # noqa: BLE001 - a state or list that is gone
        found.append(str(error))
    return found


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def age(folder: Path, seconds: float) -> None:
    """Makes everything below a folder so much older."""
    for path in files_of(folder):
        stat = path.stat()
        os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))


def blob_of(content: bytes) -> BlobRef:
    return BlobRef.of(content)
