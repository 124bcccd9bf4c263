"""Finds the version to serve: reads metadata files newest first, and checks closures, no more than the choice needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from frazil.errors import IntegrityError, NotFoundError, UsageError
from frazil.observe.cancellation import raise_if_stopped
from frazil.replica.beacon import Beacon
from frazil.replica.candidates import (
    MetadataCandidate,
    MetadataFile,
    MetadataFolder,
    UnreadableMetadata,
    complete_prefixes,
    list_metadata_files,
    list_uuids,
    load_candidate,
    read_hint,
)
from frazil.replica.choose import Choice, ServedVersion, Witness, choose_version, number_of
from frazil.replica.closure import Closure, KnownFiles, check_closure
from frazil.replica.scan import ReplicaFiles, map_in_threads
from frazil.tables.relocation import PrefixMap

#: Metadata files that are read first; then twice as many each time.
_FIRST_READ = 2
#: Numbers of the first version of a table.
_FIRST_NUMBERS = (0, 1)


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
    listed = list_metadata_files(files, folder)
    if not listed.files:
        raise NotFoundError(
            f"there is no Iceberg metadata in {folder}",
            cause="no file in it is called *.metadata.json",
            hint="check the path, and whether the replication has begun",
        )
    wanted = uuid or (served.uuid if served is not None else "") or None
    beacon_name = _find_in_beacon(beacon, wanted, listed)
    if served is not None and _is_newest(served, listed, beacon_name):
        witness: Witness | None = "beacon" if beacon_name == served.name else None
        return NewestVersion(Choice(None, witness), None, None, None, listed.files[0].number, None)
    search = _Search(files, listed, served, known, prefixes, beacon, wanted, witnessed_only, stop)
    return search.run(beacon_name)


@dataclass
class _Search:
    """One call of `find_newest_version`."""

    files: ReplicaFiles
    listed: MetadataFolder
    served: ServedVersion | None
    known: KnownFiles | None
    prefixes: tuple[tuple[str, str], ...]
    beacon: Beacon | None
    uuid: str | None
    witnessed_only: bool
    stop: threading.Event | None
    _loaded: dict[str, MetadataCandidate] = field(default_factory=dict)
    _unreadable: dict[str, UnreadableMetadata] = field(default_factory=dict)
    _closures: dict[str, Closure] = field(default_factory=dict)

    def run(self, beacon_name: str | None) -> NewestVersion:
        hints = read_hint(self.files, self.listed.hint) if self.listed.hint is not None else ()
        self._load(self._list_needed(beacon_name))
        for batch in self._batches():
            self._load(batch)
            if not self._loaded:
                continue
            self._require_one_table(beacon_name)
            lowest = batch[-1].number
            choice = self._choose(hints, beacon_name, lowest)
            if choice.name is not None and number_of(choice.name) >= lowest:
                return self._result(choice)
        if not self._loaded and self.served is None:
            first = self._list_unreadable()[0]
            raise IntegrityError(
                f"{first.file.path} cannot be read", cause=first.reason, hint="wait for the replication, or repeat it"
            )
        return self._result(self._choose(hints, beacon_name))

    def _list_needed(self, beacon_name: str | None) -> list[MetadataFile]:
        """Returns the files that count wherever they are in the order: which table, and what was and is current."""
        names = {beacon_name, self.served.name if self.served is not None else None}
        is_new = self.served is None and self.uuid is None
        return [f for f in self.listed.files if f.name in names or (is_new and f.number in _FIRST_NUMBERS)]

    def _batches(self) -> Iterator[list[MetadataFile]]:
        """Yields all files of a number together, the newest first, and none long before the served version."""
        oldest = number_of(self.served.name) - 1 if self.served is not None else -1
        batch: list[MetadataFile] = []
        size = _FIRST_READ
        for file in self.listed.files:
            if batch and file.number < batch[-1].number:
                if len(batch) >= size:
                    yield batch
                    batch, size = [], 2 * size
                if file.number < oldest:
                    break
            batch.append(file)
        if batch:
            yield batch

    def _load(self, some: list[MetadataFile]) -> None:
        raise_if_stopped(self.stop)
        new = [file for file in some if file.name not in self._loaded and file.name not in self._unreadable]
        for found in map_in_threads(lambda file: load_candidate(self.files, file), new):
            if isinstance(found, MetadataCandidate):
                self._loaded[found.file.name] = found
            else:
                self._unreadable[found.file.name] = found

    def _require_one_table(self, beacon_name: str | None) -> None:
        """Decides which table is followed."""
        if self.uuid is None and beacon_name in self._loaded:
            self.uuid = self._loaded[beacon_name].uuid or None
        found = list_uuids(self._loaded.values())
        if self.uuid is None and len(found) > 1:
            described = "; ".join(f"{uuid} ({', '.join(sorted(names)[-2:])})" for uuid, names in sorted(found.items()))
            raise UsageError(
                f"there are {len(found)} tables in {self.listed.folder}",
                cause=f"by their UUIDs: {described}",
                hint="give the UUID of the table, or write a beacon on the primary: frazil replica beacon",
            )

    def _choose(self, hints: tuple[str, ...], beacon_name: str | None, lowest: int = -1) -> Choice:
        """Chooses among the versions from a number on. Lower ones count when those between have been read too."""
        always = {beacon_name, self.served.name if self.served is not None else None}
        ours = [
            candidate
            for name, candidate in self._loaded.items()
            if self._is_ours(candidate) and (candidate.file.number >= lowest or name in always)
        ]
        witnesses: dict[str, Witness] = dict.fromkeys(hints, "version-hint")
        named = self.beacon.find(self.uuid) if self.beacon is not None and self.uuid is not None else None
        if named is not None:
            witnesses[named.version_name] = "beacon"
        return choose_version(
            [candidate.version for candidate in ours],
            self.served,
            witnesses=witnesses,
            unreadable=list(self._unreadable),
            is_complete=lambda name: self._check(name).is_complete,
            witnessed_only=self.witnessed_only,
        )

    def _check(self, name: str) -> Closure:
        if name not in self._closures:
            candidate = self._loaded[name]
            places = complete_prefixes(candidate, self.prefixes)
            self._closures[name] = check_closure(candidate, self.files, places, self.known, self.stop)
        return self._closures[name]

    def _result(self, choice: Choice) -> NewestVersion:
        candidate = self._loaded[choice.name] if choice.name is not None else None
        ours = [c for c in self._loaded.values() if self._is_ours(c)]
        waiting = [WaitingVersion(self._loaded[n], c) for n, c in self._closures.items() if not c.is_complete]
        return NewestVersion(
            choice,
            candidate,
            self._closures[choice.name] if choice.name is not None else None,
            complete_prefixes(candidate, self.prefixes) if candidate is not None else None,
            self.listed.files[0].number,
            max((c.version.updated_ms for c in ours), default=None),
            tuple(waiting),
            tuple(self._list_unreadable()),
            tuple(sorted({c.uuid for c in self._loaded.values()} - {c.uuid for c in ours})),
        )

    def _list_unreadable(self) -> list[UnreadableMetadata]:
        return sorted(self._unreadable.values(), key=lambda found: found.file.number, reverse=True)

    def _is_ours(self, candidate: MetadataCandidate) -> bool:
        """Whether metadata is of the table that is followed; format version 1 may not say."""
        return self.uuid is None or candidate.uuid in ("", self.uuid)


def _find_in_beacon(beacon: Beacon | None, uuid: str | None, listed: MetadataFolder) -> str | None:
    """Returns the file that the beacon names for this table: by its UUID, or else by a file that is here."""
    if beacon is None:
        return None
    if uuid is not None:
        found = beacon.find(uuid)
        return found.version_name if found is not None else None
    names = {file.name for file in listed.files}
    here = [table.version_name for table in beacon.tables if table.version_name in names]
    return here[0] if len(here) == 1 else None


def _is_newest(served: ServedVersion, listed: MetadataFolder, beacon_name: str | None) -> bool:
    """Whether no file is newer than the served version or beside it."""
    first, *rest = listed.files
    is_sole = first.name == served.name and (not rest or rest[0].number < first.number)
    return is_sole and beacon_name in (None, served.name)
