"""Checks whether everything that a version refers to has arrived: with the right size, and readable."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from frazil.replica.candidates import MetadataCandidate
from frazil.replica.scan import ReplicaFiles
from frazil.tables.relocation import PrefixMap
from frazil.tables.relocation.manifests import ManifestListEntry

FileKind = Literal["manifest list", "manifest", "data", "deletes", "statistics"]


@dataclass(frozen=True)
class MissingFile:
    """A file that has not arrived.

    Attributes:
        path: where it should be.
        kind: what it is.
        expected: its size; None where metadata does not say.
        found: the size it has now; None if it does not exist.
        reason: for files that exist with the right size and cannot be read.
    """

    path: str
    kind: FileKind
    expected: int | None
    found: int | None
    reason: str | None = None

    def __str__(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class KnownFiles:
    """What arrived before: not read or measured again.

    Attributes:
        manifest_lists: source paths.
        manifests: source path and length.
        statistics: source paths.
    """

    manifest_lists: Collection[str] = frozenset()
    manifests: Collection[tuple[str, int]] = frozenset()
    statistics: Collection[str] = frozenset()


@dataclass(frozen=True)
class Closure:
    """The files of a version.

    Attributes:
        missing: the first of them, at most `MOST_NAMED`.
        missing_count: all of them.
        manifest_lists: source paths of those that are not known.
        manifests: that are not known, by their source path. A length of 0: it is inline in a version 1 table.
        statistics: source paths of those that are not known.
        files: data and delete files that were measured.
        bytes: of these.
    """

    missing: tuple[MissingFile, ...]
    missing_count: int
    manifest_lists: tuple[str, ...]
    manifests: tuple[ManifestListEntry, ...]
    statistics: tuple[str, ...]
    files: int
    bytes: int

    @property
    def is_complete(self) -> bool:
        return not self.missing_count


MOST_NAMED = 100


def check_closure(
    candidate: MetadataCandidate,
    files: ReplicaFiles,
    places: PrefixMap,
    known: KnownFiles | None = None,
    stop: threading.Event | None = None,
) -> Closure:
    """Returns what a version refers to beyond the known files, and what of it has not arrived.

    Args:
        candidate: the version.
        files: the replicated storage.
        places: where the source's paths landed.
        known: what arrived before; None checks everything.
        stop: ends the check between two files.

    Raises:
        UnmappedPathError: no prefix covers a path.
        UnsupportedError: files are encrypted, or of a newer format version.
        StoppedError: `stop` was set.
    """
    raise NotImplementedError
