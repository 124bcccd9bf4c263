"""Erases content from all backups: a file that must not be kept any longer, by its path in a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from frazil.backup.format import BackedUpTable, BlobRef, CopiedFile
from frazil.backup.repository import Repository
from frazil.errors import NotFoundError, UsageError
from frazil.storage import normalise


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
