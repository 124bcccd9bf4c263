"""Finds the metadata files of a table in a replicated folder: the versions among which one is chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

from frazil.replica.choose import ServedVersion, Version
from frazil.replica.scan import ReplicaFiles
from frazil.tables.relocation import PrefixMap
from frazil.tables.relocation.table_metadata import TableMetadata


@dataclass(frozen=True)
class MetadataFile:
    """A metadata.json by its name, not read yet.

    Attributes:
        path: canonical URI in the replicated folder.
        name: of the file.
        number: its version.
        size: in bytes.
    """

    path: str
    name: str
    number: int
    size: int


@dataclass(frozen=True)
class MetadataCandidate:
    """A metadata.json that has arrived.

    Attributes:
        file: where it landed.
        version: its place in the table's history.
        uuid: of the table; empty where format version 1 has none.
        metadata: its content, as the source wrote it.
        source_path: where the source has it.
    """

    file: MetadataFile
    version: Version
    uuid: str
    metadata: TableMetadata = field(repr=False, compare=False)
    source_path: str = ""

    def to_served(self, *, witnessed: bool) -> ServedVersion:
        """Returns what the state records when this version is served."""
        raise NotImplementedError


@dataclass(frozen=True)
class UnreadableMetadata:
    """A file named like metadata that cannot be read: cut off, damaged, or something else.

    Attributes:
        file: which.
        reason: why.
    """

    file: MetadataFile
    reason: str


def find_table_folder(files: ReplicaFiles, identifier: tuple[str, ...] = ()) -> str:
    """Returns the folder of a table: the replicated folder itself, or the one below it that has metadata.

    Below a warehouse, `<namespace>/<table>` and `<namespace>.db/<table>` are tried first.

    Raises:
        NotFoundError: there is no Iceberg metadata.
        UsageError: there are several tables; names them.
    """
    raise NotImplementedError


def list_metadata_files(files: ReplicaFiles, folder: str) -> list[MetadataFile]:
    """Returns the metadata files of the table in a folder, newest version first. Lists `<folder>/metadata` only."""
    raise NotImplementedError


def load_candidate(files: ReplicaFiles, file: MetadataFile) -> MetadataCandidate | UnreadableMetadata:
    """Reads a metadata file.

    Raises:
        UnsupportedError: it is of a newer format version, or the table is encrypted.
    """
    raise NotImplementedError


def complete_prefixes(
    candidate: MetadataCandidate, folder: str, pairs: tuple[tuple[str, str], ...] = ()
) -> PrefixMap:
    """Returns the map from the source's paths to where they landed: the given pairs, and the table's own folder.

    Raises:
        UsageError: the table's metadata lies outside its location, and no pair covers the location.
    """
    raise NotImplementedError
