"""Checks that all files of what a replica serves are there: its metadata, and the data where it landed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from frazil.catalogs import parse_name, read_metadata
from frazil.errors import IntegrityError, NotFoundError
from frazil.replica.candidates import MetadataCandidate, MetadataFile
from frazil.replica.choose import Version, number_of
from frazil.replica.closure import Closure, check_closure
from frazil.replica.data_files import PATH, is_data_file_replica
from frazil.replica.scan import open_replica_files
from frazil.replica.state import parse_state
from frazil.tables.relocation import PrefixMap
from frazil.tables.relocation.table_metadata import TableMetadata, list_metadata_paths, trim_metadata
from frazil.upkeep.context import UpkeepContext


@dataclass(frozen=True)
class VerifyReport:
    """What was checked of one replica.

    Attributes:
        table: its name.
        metadata_location: of what is served.
        snapshots: in it.
        manifests: that were read.
        files: data and delete files that were measured.
        bytes: of these.
        missing: files that are not there, or have another size: the first hundred, with what is wrong.
        missing_count: all of them.
    """

    table: str
    metadata_location: str
    snapshots: int
    manifests: int
    files: int
    bytes: int
    missing: tuple[str, ...]
    missing_count: int

    @property
    def is_sound(self) -> bool:
        return not self.missing_count

    @property
    def error(self) -> IntegrityError | None:
        """The error for files that are missing; None if all is well."""
        if self.is_sound:
            return None
        return IntegrityError(
            f"{self.missing_count} files of the replica {self.table} are missing or damaged",
            cause=self.missing[0],
            hint="repeat the replication, or sync again where relocated metadata is missing",
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON."""
        return {**vars(self), "missing": list(self.missing), "sound": self.is_sound}


def verify_replica(care: UpkeepContext, name: str) -> VerifyReport:
    """Checks every file that a replica's table refers to: it is there, with its size, and metadata can be read.

    Of a table of bare Parquet files, the current snapshot is checked.

    Args:
        care: of the replica's catalog.
        name: of the table.

    Raises:
        NotFoundError: there is no such table, or it is no replica.
        StoppedError: the stop event of `care` was set.
    """
    store = care.store
    identifier = parse_name(name, care.catalog.name)
    found = store.call(lambda: read_metadata(store.catalog, identifier), "read_metadata")
    if found is None:
        care.load(name)  # its error names what is near
        raise NotFoundError(f"the table {name} does not exist", hint="frazil replica status")
    pointer, metadata = found
    properties = metadata.get("properties") or {}
    table = ".".join(identifier)
    state = parse_state(properties, table)
    if state is None and not is_data_file_replica(properties):
        raise NotFoundError(f"{table} is no replica", hint="frazil replica status")
    if state is None:  # files that are gone from the folder are still in older snapshots
        metadata = _select_current(metadata)
    model = care.settings.model
    root = state.replicated_path if state is not None else properties[PATH]
    files = open_replica_files(root, s3=care.catalog.s3 or model.s3, network=model.network, spark=care.spark)
    folders = [str(metadata["location"]).rstrip("/"), root, files.root]
    folders += [landed for _, landed in state.prefixes] if state is not None else []
    folders += [path.rpartition("/")[0] for path in list_metadata_paths(metadata).statistics]
    places = PrefixMap([(folder, folder) for folder in dict.fromkeys(folders)])
    file = MetadataFile(pointer, pointer.rpartition("/")[2], number_of(pointer.rpartition("/")[2]), 0)
    served = MetadataCandidate(file, Version(file.name), str(metadata.get("table-uuid") or ""), metadata, pointer)
    return _report(table, pointer, metadata, check_closure(served, files, places, stop=care.stop))


def _select_current(metadata: TableMetadata) -> TableMetadata:
    current = metadata.get("current-snapshot-id")
    keep = set() if current in (None, -1) else {current}
    return trim_metadata(metadata, keep=keep, refs={"main"} if keep else set())


def _report(table: str, pointer: str, metadata: dict[str, Any], found: Closure) -> VerifyReport:
    return VerifyReport(
        table, pointer, len(metadata.get("snapshots") or ()), len(found.manifests), found.files, found.bytes,
        tuple(map(str, found.missing)), found.missing_count,
    )  # fmt: skip
