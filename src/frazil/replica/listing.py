"""The data files of a replicated folder, as compact as a large folder needs, and their fingerprint.

A listing costs two calls of the system for each file, and no object. It is not replaced by the modification times of
folders: these do not change when a file is written anew or grows in place, as `cp` and `rsync --inplace` do.
"""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from frazil.errors import UnsupportedError, UsageError
from frazil.replica.scan import ReplicaFiles, ReplicatedFile, map_in_threads
from frazil.storage import parse
from frazil.storage.faults import from_os

#: What a name must have that is not one of a data file; in a text with one name to the line.
_MARKS = ("\n.", "\n_", ".metadata.json")
#: Names that copy tools give to files until they are complete: HDFS, rclone, and `aws s3 cp`, whose eight hex
#: digits hold a letter, unlike a date.
_TEMPORARY = re.compile(r"\.(?:_COPYING_|partial|(?:parquet|parq|pq)\.(?=\d*[A-Fa-f])[0-9A-Fa-f]{8})$", re.MULTILINE)
#: Logs of other table formats: which of their files count is written there.
_OTHER_FORMATS = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}


@dataclass
class FolderListing:
    """The data files below a folder: all but hidden ones, as Spark and Hive choose them.

    Attributes:
        root: canonical URI of the folder.
        folders: sizes of data files by their names, for each folder below the root, by its relative path.
        ignored: files that are left out by their names, such as `_SUCCESS`.
    """

    root: str
    folders: dict[str, dict[str, int]]
    ignored: int = 0

    @cached_property
    def count(self) -> int:
        return sum(len(sizes) for sizes in self.folders.values())

    @cached_property
    def fingerprint(self) -> str:
        """Changes when a file comes, goes, or has another size."""
        digest = hashlib.blake2b(digest_size=16)
        for folder in sorted(self.folders):
            sizes = self.folders[folder]
            names = sorted(sizes)
            digest.update("\0".join([folder, *names, "/"]).encode("utf-8", "surrogatepass"))
            digest.update(array("q", map(sizes.__getitem__, names)).tobytes())
        return digest.hexdigest()

    def files(self) -> Iterator[ReplicatedFile]:
        """Yields all data files."""
        for folder, sizes in self.folders.items():
            place = f"{self.root}/{folder}/" if folder else f"{self.root}/"
            for name, size in sizes.items():
                yield ReplicatedFile(f"{place}{name}", size)

    def size_of(self, path: str) -> int | None:
        """Returns the size of a data file by its URI; None if there is none."""
        folder, _, name = path[len(self.root) + 1 :].rpartition("/")
        return self.folders.get(folder, {}).get(name) if path.startswith(f"{self.root}/") else None

    def add(self, folder: str, sizes: dict[str, int]) -> None:
        """Adds the files of a folder, as far as they count.

        Raises:
            UsageError: the folder holds the metadata of an Iceberg table.
            UnsupportedError: it is a table of another format.
        """
        is_hidden = _is_hidden_folder(self.root, folder) if "/_" in f"/{folder}" or "/." in f"/{folder}" else False
        text = "\n".join(["", *sizes])
        if sizes and not is_hidden and not any(mark in text for mark in _MARKS) and not _TEMPORARY.search(text):
            self.folders[folder] = sizes
            return
        prefix = f"{folder}/" if folder else ""
        chosen: dict[str, int] = {}
        for name, size in sizes.items():
            if name.endswith(".metadata.json"):
                raise UsageError(
                    f"{self.root} holds the metadata of an Iceberg table: {prefix}{name}",
                    hint="sync it in metadata mode, or name the folder of its data files",
                )
            if is_hidden or _TEMPORARY.search(name) or (name[0] in "._" and _is_hidden(name)):
                self.ignored += 1
            else:
                chosen[name] = size
        if chosen:
            self.folders[folder] = chosen


def list_data_files(files: ReplicaFiles) -> FolderListing:
    """Lists the data files of a replicated folder.

    Raises:
        UsageError: the folder holds the metadata of an Iceberg table.
        UnsupportedError: it is a table of another format.
    """
    listing = FolderListing(files.root, {})
    for folder, sizes in _list_local(files.root) if files.root.startswith("file:") else _list_stored(files):
        listing.add(folder, sizes)
    return listing


def _list_local(root: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Yields each folder below a local one: several at once, because each file is a request where the disk is NFS."""
    top = str(parse(root).path)
    pending = [""]
    while pending:
        found: list[str] = []
        for folder, (sizes, below) in zip(pending, map_in_threads(lambda at: _scan(top, at), pending), strict=True):
            yield folder, sizes
            found += below
        pending = found


def _scan(top: str, folder: str) -> tuple[dict[str, int], list[str]]:
    """Returns the sizes of the files in a folder by their names, and the folders in it."""
    sizes: dict[str, int] = {}
    below: list[str] = []
    prefix = f"{folder}/" if folder else ""
    try:
        opened = os.open(f"{top}/{folder}", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(opened) as entries:  # relative to the open folder the system resolves no long paths
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        below.append(f"{prefix}{entry.name}")
                    elif entry.is_file():
                        try:
                            sizes[entry.name] = entry.stat().st_size
                        except FileNotFoundError:  # removed since
                            continue
        finally:
            os.close(opened)
    except (FileNotFoundError, NotADirectoryError):
        return {}, []
    except OSError as error:
        raise from_os(error, f"{top}/{folder}") from error
    return sizes, below


def _list_stored(files: ReplicaFiles) -> Iterator[tuple[str, dict[str, int]]]:
    folders: dict[str, dict[str, int]] = {}
    start = len(files.root) + 1
    for file in files.list():
        folder, _, name = file.path[start:].rpartition("/")
        folders.setdefault(folder, {})[name] = file.size
    yield from folders.items()


def _is_hidden_folder(root: str, folder: str) -> bool:
    parts = folder.split("/")
    for part in parts:
        if part in _OTHER_FORMATS:
            raise UnsupportedError(
                f"{root} is a table of {_OTHER_FORMATS[part]}: {folder}",
                cause="some of its files do not count any more",
                hint="convert it to Iceberg on the primary",
            )
    return any(_is_hidden(part) for part in parts)


def _is_hidden(part: str) -> bool:
    return part.startswith(".") or (part.startswith("_") and "=" not in part)
