"""The work of a sync, file by file: functions of one task each, for any engine, and what they need. Picklable."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from frazil.observe.faultpoints import reach
from frazil.tables.relocation.manifests import (
    FileSize,
    read_manifest_files,
    read_manifest_list,
    relocate_manifest,
    relocate_manifest_list,
)
from frazil.tables.relocation.prefixes import PrefixMap
from frazil.tables.relocation.target_folder import TargetFolder, relocate_deletes

#: Content of a file of position deletes or deletion vectors, in a manifest.
_POSITION_DELETES = 1


class Files(Protocol):
    """Reads replicated files."""

    def read(self, path: str, /) -> bytes: ...


@dataclass(frozen=True)
class RelocationWork:
    """What all tasks of a sync share.

    Attributes:
        files: the replicated storage.
        target: the folder of the replica's table.
        places: where the primary's paths landed: data, equality deletes and statistics are served from there.
        homes: where relocated files go: metadata, position deletes and deletion vectors.
    """

    files: Files
    target: TargetFolder
    places: PrefixMap
    homes: PrefixMap

    @property
    def is_in_place(self) -> bool:
        """Whether the storage was copied to the same paths, so that no file has to change."""
        return self.places.is_identity

    @property
    def signature(self) -> str:
        """Changes when relocated files would."""
        text = repr((self.places.pairs, self.homes.pairs))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ManifestTask:
    """A manifest to relocate.

    Attributes:
        path: in the source.
        length: as its list says; 0 where it has none.
        has_deletes: whether its files are deletes.
    """

    path: str
    length: int
    has_deletes: bool


@dataclass(frozen=True)
class ManifestResult:
    """A relocated manifest.

    Attributes:
        path: in the source.
        length: as the task has it.
        relocated: its length.
        deletes: source paths of the delete files that were rewritten for it.
        bytes: written.
    """

    path: str
    length: int
    relocated: int
    deletes: tuple[str, ...] = ()
    bytes: int = 0


@dataclass(frozen=True)
class ListResult:
    """A relocated manifest list.

    Attributes:
        path: in the source.
        manifests: source paths of those that it names.
        bytes: written.
    """

    path: str
    manifests: tuple[str, ...]
    bytes: int = 0


def choose_places(
    pairs: tuple[tuple[str, str], ...], same: tuple[bool, ...], target: str, *, is_assigned: bool = False
) -> tuple[PrefixMap, PrefixMap]:
    """Returns where the primary's paths are served from, and where relocated files go.

    Relocated files of other places never have the same names: what is served now stays as it is until the commit.

    Args:
        pairs: source prefixes, and where they landed.
        same: for each pair, whether both are one place.
        target: the folder of the replica's table.
        is_assigned: the folder is one that a service has made, which may take files at the usual places only. The first
            pair is then that of the table's own folder.
    """
    places = [(source, source if one else landed) for (source, landed), one in zip(pairs, same, strict=True)]
    homes = []
    for number, (source, landed) in enumerate(places):
        name = hashlib.sha256(f"{source}\0{landed}".encode()).hexdigest()[:8]
        if is_assigned:
            homes.append((source, target if number == 0 else f"{target}/data/{name}"))
        else:
            homes.append((source, f"{target}/relocated/{name}"))
    found = PrefixMap(places)
    return found, found if found.is_identity else PrefixMap(homes)


def relocate_one_manifest(work: RelocationWork, task: ManifestTask) -> ManifestResult:
    """Rewrites the position deletes of a manifest, and then the manifest, so that all sizes are measured."""
    if work.is_in_place:
        return ManifestResult(task.path, task.length, task.length)
    data = work.files.read(work.places.map(task.path))
    sizes: dict[str, FileSize] = {}
    size = 0
    for file in read_manifest_files(data, task.path) if task.has_deletes else ():
        if file.content == _POSITION_DELETES and file.is_live and file.path not in sizes:
            content = work.files.read(work.places.map(file.path))
            rewritten, sizes[file.path] = relocate_deletes(content, file.format, work.places)
            reach("replica.deletes.before")
            work.target.write(work.homes.map(file.path), rewritten)
            reach("replica.deletes.after")
            size += len(rewritten)
    relocated = relocate_manifest(
        data, work.places, sizes if task.has_deletes else None, position_deletes=work.homes, where=task.path
    ).data
    reach("replica.manifest.before")
    work.target.write(work.homes.map(task.path), relocated)
    reach("replica.manifest.after")
    return ManifestResult(task.path, task.length, len(relocated), tuple(sizes), size + len(relocated))


def relocate_one_list(work: RelocationWork, lengths: Mapping[str, int], path: str) -> ListResult:
    """Rewrites a manifest list."""
    data = work.files.read(work.places.map(path))
    manifests = tuple(entry.path for entry in read_manifest_list(data, path))
    if work.is_in_place:
        return ListResult(path, manifests)
    relocated = relocate_manifest_list(data, work.homes, {name: lengths[name] for name in manifests}, where=path)
    reach("replica.list.before")
    work.target.write(work.homes.map(path), relocated)
    reach("replica.list.after")
    return ListResult(path, manifests, len(relocated))
