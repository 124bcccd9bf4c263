"""Beacons: what the primary's catalog names for each table, written into storage that is replicated with the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from frazil.replica.scan import ReplicaFiles
from frazil.upkeep.care import Care

BEACON_NAME = "frazil-beacon.json"


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
        raise NotImplementedError


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
        raise NotImplementedError


def write_beacon(care: Care, tables: Sequence[str], place: str) -> Beacon:
    """Writes `<place>/frazil-beacon.json`.

    Args:
        care: the primary's catalog.
        tables: `namespace.table`; none: every table of the catalog.
        place: a folder that is replicated together with the tables, or after them.
    """
    raise NotImplementedError


def read_beacon(files: ReplicaFiles, folder: str = "") -> Beacon | None:
    """Returns the newest readable beacon in a table's folder or a folder above it, up to the replicated one."""
    raise NotImplementedError
