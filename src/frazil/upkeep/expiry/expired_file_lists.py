"""Lists of files whose last snapshot was expired: `<location>/metadata/frazil-expired-<id>.json`.

A list is written before the commit that takes the snapshots out, and again after it, as committed. The storage's own
time of that second write begins the grace. So a list says all there is to know: nothing is kept elsewhere.

    {"format": 1, "table": "topics.clicks", "table_uuid": "…", "snapshots": [1, 2], "committed": true,
     "not_before_ms": null, "files": [["s3://…/a.parquet", 1024, "data"], …]}

`not_before_ms` is there where some of the files could not be deleted and the list was written again for these: the
grace then counts from that time, and not once more.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from frazil.errors import NotFoundError
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.storage import ObjectInfo, ObjectStore, join
from frazil.tables.metadata.locations import TableStorage, canonical_folder
from frazil.tables.metadata.reachable import ReferencedFile

if TYPE_CHECKING:
    from pyiceberg.table import Table

log = get_logger(__name__)

PREFIX = "frazil-expired-"
_FORMAT = 1


@dataclass(frozen=True)
class ExpiredList:
    """One list.

    Attributes:
        uri: where it lies.
        table: the table's name then, for people.
        table_uuid: whose files these are.
        snapshots: that went, or were about to go.
        files: that only they held.
        committed: whether they are known to be gone.
        not_before: from when on the grace counts; None: from when the list was written.
        written: when that was, by the storage's clock; None before it is stored.
    """

    uri: str
    table: str
    table_uuid: str
    snapshots: tuple[int, ...]
    files: tuple[ReferencedFile, ...]
    committed: bool = False
    not_before: datetime | None = None
    written: datetime | None = None

    @property
    def size(self) -> int:
        return sum(file.size or 0 for file in self.files)

    def is_due(self, now: datetime, grace_s: float) -> bool:
        """Without a grace a stored list is due whatever the clock says: it may have been set back since."""
        begins = self.not_before or self.written
        return begins is not None and (grace_s <= 0 or begins + timedelta(seconds=grace_s) <= now)

    def to_json(self) -> bytes:
        found = {
            "format": _FORMAT,
            "table": self.table,
            "table_uuid": self.table_uuid,
            "snapshots": self.snapshots,
            "committed": self.committed,
            "not_before_ms": None if self.not_before is None else round(self.not_before.timestamp() * 1000),
            "files": [list(file) for file in self.files],
        }
        return json.dumps(found, separators=(",", ":")).encode()


def folder_of(table: Table) -> str:
    return join(canonical_folder(table.location()), "metadata")


def is_list(uri: str) -> bool:
    name = uri.rpartition("/")[2]
    return name.startswith(PREFIX) and name.endswith(".json")


def new_list(table: Table, snapshots: Sequence[int], files: Iterable[ReferencedFile]) -> ExpiredList:
    return ExpiredList(
        uri=join(folder_of(table), f"{PREFIX}{uuid.uuid4()}.json"),
        table=".".join(table.name()),
        table_uuid=str(table.metadata.table_uuid),
        snapshots=tuple(snapshots),
        files=tuple(files),
    )


def write(places: TableStorage, expired: ExpiredList) -> ExpiredList:
    """Stores a list, durably, over what was there under its name."""
    reach("upkeep.expire.list.before")
    store, key = places.find(expired.uri)
    store.put(key, expired.to_json())
    reach("upkeep.expire.list.after")
    return expired


def drop(places: TableStorage, expired: ExpiredList) -> None:
    store, key = places.find(expired.uri)
    store.delete(key)


def waiting(places: TableStorage, table: Table) -> list[ExpiredList]:
    """The lists of a table, oldest first. One that cannot be read is left alone, and told."""
    own = str(table.metadata.table_uuid)
    store, begin = places.find(join(folder_of(table), PREFIX))
    found: list[ObjectInfo] = []
    for info in store.list(begin.rpartition("/")[0], start_after=begin):
        if is_list(info.key):
            found.append(info)
        elif store.lists_in_key_order:
            break
    read = (_read(store, info) for info in sorted(found, key=lambda i: i.last_modified))
    return [expired for expired in read if expired is not None and expired.table_uuid == own]


def _read(store: ObjectStore, info: ObjectInfo) -> ExpiredList | None:
    uri = f"{store.root}/{info.key}"
    try:
        found = json.loads(store.get(info.key))
        since = found["not_before_ms"]
        return ExpiredList(
            uri=uri,
            table=str(found["table"]),
            table_uuid=str(found["table_uuid"]),
            snapshots=tuple(int(i) for i in found["snapshots"]),
            files=tuple(ReferencedFile(path, size, kind) for path, size, kind in found["files"]),
            committed=bool(found["committed"]),
            not_before=None if since is None else datetime.fromtimestamp(since / 1000, UTC),
            written=info.last_modified,
        )
    except NotFoundError:  # another run has done it
        return None
    except (ValueError, KeyError, TypeError) as error:
        log.warning("a list of expired files cannot be read and is left alone", uri=uri, error=str(error))
        return None


def as_committed(expired: ExpiredList) -> ExpiredList:
    return replace(expired, committed=True, written=None)
