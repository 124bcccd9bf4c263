"""Finds the version to serve: reads metadata files newest first, and checks closures, no more than the choice needs."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from frazil.replica.beacon import Beacon
from frazil.replica.candidates import MetadataCandidate, UnreadableMetadata
from frazil.replica.choose import Choice, ServedVersion
from frazil.replica.closure import Closure, KnownFiles
from frazil.replica.scan import ReplicaFiles
from frazil.tables.relocation import PrefixMap


@dataclass(frozen=True)
class WaitingVersion:
    """A newer version whose files have not all arrived."""

    candidate: MetadataCandidate
    closure: Closure


@dataclass(frozen=True)
class NewestVersion:
    """The version to serve, and what is newer.

    Attributes:
        choice: its name and why it; the name is None where the served version stays.
        candidate: it; None where the served version stays.
        closure: its files that are not known.
        places: where the source's paths landed; None where no metadata was read.
        newest_number: of the newest metadata file that has arrived, whether committed or not.
        newest_updated_ms: of the newest one that can be read.
        waiting: newer versions that are not complete, newest first.
        unreadable: newer metadata files that cannot be read.
        other_uuids: of other tables whose metadata lies in the same folder.
    """

    choice: Choice
    candidate: MetadataCandidate | None
    closure: Closure | None
    places: PrefixMap | None
    newest_number: int
    newest_updated_ms: int | None
    waiting: tuple[WaitingVersion, ...] = ()
    unreadable: tuple[UnreadableMetadata, ...] = ()
    other_uuids: tuple[str, ...] = ()


def find_newest_version(
    files: ReplicaFiles,
    folder: str,
    *,
    served: ServedVersion | None = None,
    known: KnownFiles | None = None,
    prefixes: tuple[tuple[str, str], ...] = (),
    beacon: Beacon | None = None,
    uuid: str | None = None,
    witnessed_only: bool = False,
    stop: threading.Event | None = None,
) -> NewestVersion:
    """Returns the version of a table that a replica should serve.

    Nothing but a listing of the metadata folder is read if the served version is the newest file there.

    Args:
        files: the replicated storage.
        folder: of the table, see `find_table_folder`.
        served: by the replica now.
        known: files of the served version, which need not be checked again.
        prefixes: source prefixes and where they landed; that of the table's own folder is found if it is missing.
        beacon: of the primary.
        uuid: of the table to follow where several lie in the folder; by default that of the served version.
        witnessed_only: wait for a witness.
        stop: ends the search between two files.

    Raises:
        NotFoundError: there is no metadata file.
        IntegrityError: none of the metadata files can be read.
        UsageError: metadata of several tables lies in the folder, and it is not known which to follow.
        UnmappedPathError: no prefix covers a path.
        UnsupportedError: the table is encrypted, or of a newer format version.
    """
    raise NotImplementedError
