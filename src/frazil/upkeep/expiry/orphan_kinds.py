"""Which names Iceberg's writers give to files in a table's folder, and which are for others to judge."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import TYPE_CHECKING, Literal

from frazil.tables.metadata.locations import canonical_folder, is_inside
from frazil.upkeep.expiry.clock import PROBE

if TYPE_CHECKING:
    from pyiceberg.table import Table

Kind = Literal["data", "metadata.json", "manifest", "statistics", "checksum", "probe"]

_DATA = (".parquet", ".orc", ".avro", ".puffin")
_STATISTICS = (".stats", ".puffin", ".parquet")
_METADATA_JSON = re.compile(r".*\.metadata\.json(\.gz)?")


class Layout:
    """Where in a table's folder which files are expected."""

    def __init__(self, table: Table) -> None:
        self._location = canonical_folder(table.location())
        properties = table.metadata.properties
        data = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
        self._data = self._folders("data", *(properties.get(key) for key in data))
        self._metadata = self._folders("metadata", properties.get("write.metadata.path"))

    def _folders(self, usual: str, *named: str | None) -> list[str]:
        found = [f"{self._location}/{usual}", *(canonical_folder(uri) for uri in named if uri)]
        return [folder for folder in found if folder != self._location and is_inside(folder, self._location)]

    def kind(self, uri: str, found: Container[str]) -> Kind | None:
        """What an unreferenced file must have been; None where that is not plain."""
        inside = uri.removeprefix(self._location + "/")
        folder, _, name = uri.rpartition("/")
        if any(_is_hidden(part) for part in inside.split("/")[:-1]):
            return None
        if self.is_checksum(uri):
            # One whose file is there goes with it.
            return "checksum" if self._place(uri) and f"{folder}/{name[1:-4]}" not in found else None
        if _is_hidden(name):
            return None
        return _kind_of(name, self._place(uri))

    def is_checksum(self, uri: str) -> bool:
        name = uri.rpartition("/")[2]
        return name.startswith(".") and name.endswith(".crc") and self._location.startswith("file:")

    def _place(self, uri: str) -> Literal["data", "metadata"] | None:
        if any(is_inside(uri, folder) for folder in self._metadata):
            return "metadata"
        return "data" if any(is_inside(uri, folder) for folder in self._data) else None


def _kind_of(name: str, place: Literal["data", "metadata"] | None) -> Kind | None:
    if place == "data":
        return "data" if name.endswith(_DATA) else None
    if place is None:
        return None
    if is_metadata_json(name):
        return "metadata.json"
    if name.endswith(".avro"):
        return "manifest"
    if name.startswith(PROBE):
        return "probe"
    return "statistics" if name.endswith(_STATISTICS) else None


def _is_hidden(part: str) -> bool:
    """As Iceberg's own search has it. A folder such as `_x=1` is a partition's."""
    return part.startswith((".", "_")) and "=" not in part


def is_metadata_json(uri: str) -> bool:
    return _METADATA_JSON.fullmatch(uri.rpartition("/")[2]) is not None
