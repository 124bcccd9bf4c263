"""Backups of tables on the embedded catalog without a JVM, and an oracle that says what a record must hold.

As a program it is a create in its own process, which is killed at a step: `python -m tests.backup_create_kit ORDER`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from frazil.backup import table_copy
from frazil.backup.create import create_backup
from frazil.backup.format import BackedUpTable, BackupRecord
from frazil.backup.repository import Repository
from frazil.catalogs import local_path
from frazil.observe.faultpoints import handled
from frazil.settings import load_settings
from frazil.tables.metadata.locations import canonical_uri
from frazil.tables.relocation.manifests import read_manifest_files, read_manifest_list
from frazil.tables.relocation.table_metadata import list_metadata_paths, parse_metadata
from frazil.upkeep.context import UpkeepContext
from tests.upkeep_files import care_of, care_of_settings

#: What a create copied of a table, by the steps it has reached.
FILES, MANIFESTS, LISTS = "backup.create.file.stored", "backup.create.manifest.stored", "backup.create.list.stored"


@dataclass
class Bench:
    """A catalog and a repository.

    Attributes:
        steps: reached by the last `backup`, with their number.
    """

    care: UpkeepContext
    repository: Repository
    steps: Counter[str]

    def backup(self, *tables: str, **options: Any) -> BackupRecord:
        self.steps.clear()
        lock = threading.Lock()
        hook = options.pop("hook", None)

        def count(step: str) -> None:
            with lock:
                self.steps[step] += 1
                number = self.steps[step]
            if hook is not None:
                hook(step, number)

        with handled(count):
            return create_backup(self.care, self.repository, tables or ("ns.t",), engine="local", **options)

    @property
    def records(self) -> list[str]:
        return [record.name for record in self.repository.list_records()]


@contextmanager
def open_bench(folder: Path, care: UpkeepContext | None = None, root: str | None = None) -> Iterator[Bench]:
    care = care or care_of(folder / "home")
    model = care.settings.model
    repository = Repository.open(root or str(folder / "repository"), s3=model.s3, network=model.network, create=True)
    with care.store:
        yield Bench(care, repository, Counter())


def metadata_bytes(care: UpkeepContext, table: Table | str) -> bytes:
    name = table if isinstance(table, str) else ".".join(table.name())
    loaded = care.load(name)
    return care.storage_of(loaded).read(loaded.metadata_location)


@dataclass(frozen=True)
class Reached:
    """What a state of a table refers to: the content of each file by its canonical URI."""

    manifest_lists: dict[str, str]
    manifests: dict[str, str]
    files: dict[str, str]


def reach_all(metadata: bytes, where: str, read: Any) -> Reached:
    """Follows a metadata.json to every file, which `read` gives by its URI."""
    lists: dict[str, str] = {}
    manifests: dict[str, str] = {}
    files: dict[str, str] = {}
    for path in list_metadata_paths(parse_metadata(metadata, where)).manifest_lists:
        data = read("list", path)
        lists[canonical_uri(path)] = _digest(data)
        for entry in read_manifest_list(data, path):
            uri = canonical_uri(entry.path)
            if uri in manifests:
                continue
            found = read("manifest", entry.path)
            manifests[uri] = _digest(found)
            for file in read_manifest_files(found, entry.path):
                if file.is_live and canonical_uri(file.path) not in files:
                    files[canonical_uri(file.path)] = _digest(read("file", file.path))
    return Reached(lists, manifests, files)


def expected(care: UpkeepContext, name: str = "ns.t", metadata: bytes | None = None) -> Reached:
    """What a backup of a table must hold now."""
    table = care.load(name)
    storage = care.storage_of(table)
    data = metadata if metadata is not None else storage.read(table.metadata_location)
    return reach_all(data, table.metadata_location, lambda _, path: storage.read(path))


def held(repository: Repository, table: BackedUpTable) -> Reached:
    """What a record holds of a table, read from the repository alone."""
    state = repository.read_state(table)
    lists = {one.path: one.blob for one in state.manifest_lists}
    manifests = {one.path: one for one in state.manifests}
    files = {file.path: file for one in state.manifests for file in repository.read_files(one)}

    def read(kind: str, path: str) -> bytes:
        if kind == "list":
            return repository.get_meta(lists[path])
        if kind == "manifest":
            return repository.get_meta(manifests[path].blob)
        blob = files[path].blob
        assert blob is not None
        return b"".join(repository.open_data(blob))

    return reach_all(repository.get_meta(state.metadata.blob), state.metadata.path, read)


def held_metadata(repository: Repository, table: BackedUpTable) -> bytes:
    return repository.get_meta(repository.read_state(table).metadata.blob)


def blobs_in(repository: Repository) -> set[str]:
    """Names of the data files in a local repository."""
    root = Path(local_path(repository.root) or "/nowhere")
    return {path.name for path in (root / "data").rglob("*") if path.is_file() and not path.name.startswith(".")}


def remove_files(table: Table, *uris: str) -> None:
    for uri in uris:
        Path(local_path(uri) or "/nowhere").unlink()


def copy_of(folder: Path, target: Path) -> None:
    shutil.copytree(folder, target, symlinks=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main(order: str) -> None:
    """Creates a backup. Prints the steps that it reached, unless it is killed at one of them."""
    given = json.loads(order)
    table_copy._NOTE_S = 0.0
    reached: list[str] = []
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def strike(step: str) -> None:
        with lock:
            reached.append(step)
            seen[step] += 1
            if step == given["step"] and seen[step] == given.get("nth", 1):
                os.kill(os.getpid(), signal.SIGKILL)

    care = care_of_settings(load_settings(flags=given["flags"], environ={}))
    model = care.settings.model
    with care.store, handled(strike):
        repository = Repository.open(given["root"], s3=model.s3, network=model.network)
        record = create_backup(care, repository, given["tables"], name=given.get("name"), engine="local")
    print(json.dumps({"name": record.name, "steps": list(dict.fromkeys(reached)), "counts": dict(seen)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
