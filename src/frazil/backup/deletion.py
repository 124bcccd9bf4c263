"""Deletes backups by name, and finds content to erase from all backups. What no backup needs is left to prune."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress

from frazil.backup.format import BackedUpTable, BlobRef, CopiedFile
from frazil.backup.repository import Repository, record_key
from frazil.errors import IntegrityError, LockedError, NotFoundError, UnsupportedError, UsageError
from frazil.storage import normalise


def require_deletable(repository: Repository, names: Sequence[str]) -> None:
    """Checks that backups exist, whether or not their records can be read, and that they may be deleted.

    Raises:
        NotFoundError: there is no backup of such a name; the hint offers near names.
        LockedError: Object Lock protects one.
    """
    for name in names:
        with suppress(IntegrityError, UnsupportedError):  # a damaged record is a reason to delete it
            repository.read_record(name)
        until = repository.find_lock(record_key(name))
        if until is not None:
            raise LockedError(
                f"backup '{name}' is locked until {until:%Y-%m-%d %H:%M} UTC", hint="repeat when that is over"
            )


def delete_backups(repository: Repository, names: Sequence[str]) -> None:
    """Deletes the records of backups.

    Raises:
        LockedError: Object Lock protects one. Those before it are deleted.
    """
    for name in names:
        until = repository.remove(record_key(name))
        if until is not None:
            raise LockedError(f"backup '{name}' is locked until {until:%Y-%m-%d %H:%M} UTC")


# -- content


def find_blobs(
    repository: Repository, tables: Iterable[BackedUpTable], paths: Collection[str]
) -> dict[str, tuple[CopiedFile, BlobRef]]:
    """Returns the files of a backup by their paths in the table, however these are spelled.

    Raises:
        NotFoundError: the backup has no such file.
        UsageError: a file was not copied: the backup only refers to it.
    """
    wanted = {normalise(path): path for path in paths}
    found: dict[str, tuple[CopiedFile, BlobRef]] = {}
    for table in tables:
        for file in _files(repository, table):
            path = wanted.get(normalise(file.path))
            if path is None or path in found:
                continue
            if file.blob is None:
                raise UsageError(f"{path} was not copied, so there is nothing to erase in the repository")
            found[path] = (file, file.blob)
            if len(found) == len(wanted):
                return found
    missing = sorted(set(paths) - found.keys())
    raise NotFoundError(
        f"the backup has no file {missing[0]}" + (f", nor {len(missing) - 1} others" if missing[1:] else ""),
        hint="the path as `frazil table files` shows it, of a table and snapshot that the backup has",
    )


def _files(repository: Repository, table: BackedUpTable) -> Iterator[CopiedFile]:
    for manifest in repository.read_state(table).manifests:
        yield from repository.read_files(manifest)
