"""Beacons: what the primary's catalog names for each table, written into storage that is replicated with the tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from frazil.catalogs import list_tables, parse_name, read_metadata
from frazil.errors import NotFoundError
from frazil.observe.logs import get_logger
from frazil.replica.scan import ReplicaFiles
from frazil.storage import open_object
from frazil.upkeep.context import UpkeepContext

BEACON_NAME = "frazil-beacon.json"

_FORMAT = 1

log = get_logger(__name__)


@dataclass(frozen=True)
class BeaconTable:
    """A table as the primary's catalog named it.

    Attributes:
        identifier: namespace and name.
        uuid: of the table.
        metadata_location: as the source spells it.
    """

    identifier: tuple[str, ...]
    uuid: str
    metadata_location: str

    @property
    def version_name(self) -> str:
        """The name of the metadata file."""
        return self.metadata_location.rpartition("/")[2]


@dataclass(frozen=True)
class Beacon:
    """What a catalog named at one moment.

    Attributes:
        written_at: by the primary's clock, read before the catalog was.
        catalog: name of the primary's catalog.
        tables: of it.
        is_whole: every table of the catalog is in it, so that one that is not was dropped.
    """

    written_at: datetime
    catalog: str
    tables: tuple[BeaconTable, ...]
    is_whole: bool = False

    def find(self, uuid: str) -> BeaconTable | None:
        """Returns the table of this UUID, whatever its name is now."""
        return next((table for table in self.tables if table.uuid == uuid), None)

    def to_json(self) -> bytes:
        body = {
            "format": _FORMAT,
            "written_at": self.written_at.isoformat(),
            "catalog": self.catalog,
            "is_whole": self.is_whole,
            "tables": [
                {"identifier": list(t.identifier), "uuid": t.uuid, "metadata_location": t.metadata_location}
                for t in self.tables
            ],
        }
        return json.dumps({**body, "sha256": _digest(body)}, indent=1).encode()


def write_beacon(care: UpkeepContext, tables: Sequence[str], place: str) -> Beacon:
    """Writes `<place>/frazil-beacon.json`, in one step.

    Args:
        care: the primary's catalog.
        tables: `namespace.table`; none: every table of the catalog.
        place: a folder that is replicated together with the tables, or after them. Not in a table's own folder, where
            the removal of orphan files would take it away.

    Raises:
        NotFoundError: there is no such table.
    """
    written_at, name = datetime.now(UTC), care.catalog.name
    store = care.store
    identifiers = [parse_name(table, name) for table in tables]
    if not tables:
        identifiers = store.call(lambda: list_tables(store.catalog, store.settings), "list_tables")
    found = [entry for identifier in identifiers if (entry := _look_up(care, identifier, bool(tables))) is not None]
    beacon = Beacon(written_at, name, tuple(found), is_whole=not tables)
    model = care.settings.model
    path = f"{place.rstrip('/')}/{BEACON_NAME}"
    folder, key = open_object(path, s3=care.catalog.s3 or model.s3, network=model.network)
    folder.put(key, beacon.to_json())
    return beacon


def read_beacon(files: ReplicaFiles, folder: str = "") -> Beacon | None:
    """Returns the newest readable beacon in a table's folder or a folder above it, up to the replicated one.

    One that is cut off or damaged is logged and counts as not there.
    """
    found = []
    for place in _folders_up(files.root, folder or files.root):
        try:
            data = files.read(f"{place}/{BEACON_NAME}")
        except NotFoundError:
            continue
        beacon = parse_beacon(data)
        if beacon is None:
            log.warning("a beacon is not readable (yet)", path=f"{place}/{BEACON_NAME}")
        else:
            found.append(beacon)
    return max(found, key=lambda beacon: beacon.written_at, default=None)


def parse_beacon(data: bytes) -> Beacon | None:
    """Returns what a beacon says; None if it is not complete, or of a newer format."""
    try:
        body: dict[str, Any] = json.loads(data)
        if body.pop("sha256") != _digest(body) or body["format"] != _FORMAT:
            return None
        tables = tuple(BeaconTable(tuple(t["identifier"]), t["uuid"], t["metadata_location"]) for t in body["tables"])
        return Beacon(datetime.fromisoformat(body["written_at"]), body["catalog"], tables, is_whole=body["is_whole"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _look_up(care: UpkeepContext, identifier: tuple[str, ...], is_required: bool) -> BeaconTable | None:
    found = care.store.call(lambda: read_metadata(care.store.catalog, identifier), "read_metadata")
    if found is None:
        if is_required:
            raise NotFoundError(f"the table {'.'.join(identifier)} does not exist", hint="frazil table list")
        return None  # dropped since the tables were listed
    location, metadata = found
    return BeaconTable(identifier, str(metadata.get("table-uuid") or ""), location)


def _folders_up(root: str, folder: str) -> list[str]:
    found = [folder]
    while folder != root and folder.startswith(f"{root}/"):
        folder = folder.rpartition("/")[0]
        found.append(folder)
    return found


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
