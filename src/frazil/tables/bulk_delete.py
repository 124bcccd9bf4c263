"""Deletes files from storage with bounded parallelism; every failure names its file.

A server that asks for patience (S3's 503 SlowDown) is given it by the storage room, which repeats the request. What
fails after that stays, and after a few such failures nothing more is asked for: a later run goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from frazil.errors import FrazilError, UsageError
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.storage import ObjectStore, parse
from frazil.storage.store import check_key

if TYPE_CHECKING:
    from frazil.tables.metadata.locations import TableStorage

log = get_logger(__name__)

_BATCH = 250
_AT_ONCE = 4
#: Batches that fail before the rest is left for later.
_MAX_FAILURES = 3

#: A file by its URI, and its size where it is known.
FileToDelete = tuple[str, int | None]


@dataclass
class DeletedFiles:
    """What became of files that were to be deleted.

    Attributes:
        files: that are gone now.
        size: their bytes, as far as known.
        left: those that are still there, or may be, each with the reason.
        unusable: those that no store of ours can name; they stay for good.
    """

    files: int = 0
    size: int = 0
    left: dict[str, FrazilError | None] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)

    def add(self, other: DeletedFiles) -> None:
        self.files += other.files
        self.size += other.size
        self.left |= other.left
        self.unusable += other.unusable

    @property
    def error(self) -> FrazilError | None:
        """Returns the error of the first file that could not be deleted."""
        return next((error for error in self.left.values() if error is not None), None)


def delete_files(places: TableStorage, files: Iterable[FileToDelete], stop: threading.Event) -> DeletedFiles:
    """Deletes files. One that is not there counts as deleted, so that a run after a broken one does the rest.

    Args:
        places: where they lie.
        files: which.
        stop: when it is set, no further batch begins.
    """
    done = DeletedFiles()
    failures = 0
    batches = list(_batches(places, files, done))
    with ThreadPoolExecutor(_AT_ONCE, "frazil-removal") as pool:
        running: dict[Future[None], list[FileToDelete]] = {}
        while batches or running:
            while batches and len(running) < _AT_ONCE and failures < _MAX_FAILURES and not stop.is_set():
                store, keys, some = batches.pop(0)
                running[pool.submit(_delete, store, keys)] = some
            if not running:
                break
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                some = running.pop(future)
                failures += _account(done, some, future)
    for _, _, some in batches:
        done.left |= {uri: None for uri, _ in some}
    return done


def _account(done: DeletedFiles, some: Sequence[FileToDelete], future: Future[None]) -> int:
    try:
        future.result()
    except FrazilError as error:
        log.warning("files could not be deleted and are left for later", files=len(some), error=error.message)
        done.left |= {uri: error for uri, _ in some}
        return 1
    done.files += len(some)
    done.size += sum(size or 0 for _, size in some)
    return 0


def _delete(store: ObjectStore, keys: Sequence[str]) -> None:
    reach("upkeep.removal.batch.before")
    store.delete(*keys)
    reach("upkeep.removal.batch.after")


def _batches(
    places: TableStorage, files: Iterable[FileToDelete], done: DeletedFiles
) -> Iterator[tuple[ObjectStore, list[str], list[FileToDelete]]]:
    by_root: dict[str, tuple[ObjectStore, list[tuple[str, FileToDelete]]]] = {}
    for uri, size in files:
        try:
            store, key = places.find(uri)
            check_key(key)
        except UsageError:
            done.unusable.append(uri)
            continue
        by_root.setdefault(store.root, (store, []))[1].append((key, (uri, size)))
    for root, (store, found) in by_root.items():
        for i in range(0, len(found), _BATCH):
            part = found[i : i + _BATCH]
            keys = [key for key, _ in part]
            if parse(root).scheme == "file":
                keys += [build_checksum_key(key) for key in keys]
            yield store, keys, [doomed for _, doomed in part]


def build_checksum_key(name: str) -> str:
    """Returns the name of the checksum file that Hadoop, and so Spark, writes beside each local file."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}.{last}.crc"
