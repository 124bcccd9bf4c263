"""Files below a table's location that nothing refers to: left by writers that failed or lost a race.

What is looked at: everything below the table's own location, and nothing else. What counts as an orphan:

- it lies below `data/` or `metadata/`, or the folders inside the location that the table's properties name for these;
- its name ends as the files of Iceberg's writers do there: a data file (`.parquet`, `.orc`, `.avro`, `.puffin`), or in
  the metadata folder a manifest or list (`.avro`), `.metadata.json`, statistics (`.stats`, `.puffin`, `.parquet`), or a
  clock's probe of ours. A checksum of Hadoop's (`.name.crc`) goes with its file, and alone where that is gone;
- no part of its path begins with `.` or `_`, as files of programs under way and `_SUCCESS` marks do;
- no snapshot, branch, tag or statistics entry refers to it, nor the metadata log, nor a list of expired files, whose
  business it is then (`reclaim`);
- by the storage's clock it was written longer than `age_s` ago: a writer under way for that long would lose its files.

All else that is unknown is counted and left. Nothing is deleted where another table may have files
(`shared_locations`), where metadata of another table lies in the folder (`foreign_metadata`), where the listing does
not show every file of the table (`listing_check`), or where the catalog keeps older states that cannot be seen here.

`find(context, table, age_s) -> Search` changes nothing; `remove(context, search)` deletes what was found, as far
as it is still an orphan; `run(context, table, Step("orphans", options={"age_s": 259200.0}))` does both.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from frazil.catalogs import flavor_of
from frazil.errors import UnsupportedError
from frazil.observe.cancellation import raise_if_stopped
from frazil.observe.faultpoints import reach
from frazil.tables import bulk_delete
from frazil.tables.bulk_delete import DeletedFiles
from frazil.tables.metadata.locations import (
    TableStorage,
    add_link_targets,
    canonical_folder,
    canonical_uri,
    clear_link_cache,
    is_service_managed,
)
from frazil.tables.metadata.reachable import Files, find_reachable_files
from frazil.upkeep.expiry import expired_file_lists
from frazil.upkeep.expiry.clock import about_now, storage_now
from frazil.upkeep.expiry.foreign_metadata import require_own
from frazil.upkeep.expiry.listing_check import require_no_alias, require_same_place, require_shown
from frazil.upkeep.expiry.orphan_kinds import Kind, Layout, is_metadata_json
from frazil.upkeep.expiry.shared_locations import require_unreferenced
from frazil.upkeep.model import Outcome, Step, removal_outcome

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.storage import ObjectInfo
    from frazil.upkeep.context import UpkeepContext

#: Between two looks at the table's metadata.
_BATCH = 1000


@dataclass(frozen=True)
class Orphan:
    uri: str
    size: int
    kind: Kind
    written: datetime


@dataclass(frozen=True)
class Search:
    """What a search found.

    Attributes:
        table: as it was then.
        orphans: that may be deleted.
        young: orphans so far that are not old enough, and how many bytes they have.
        unknown: files that are neither the table's nor look like Iceberg's; they stay.
        listed: files that wait on lists of expired ones.
        seen: objects below the location.
        age_s: from which an orphan is old enough.
        place: the canonical location that was listed.
    """

    table: Table
    age_s: float
    orphans: tuple[Orphan, ...] = ()
    young: int = 0
    young_size: int = 0
    unknown: tuple[str, ...] = ()
    listed: int = 0
    seen: int = 0
    place: str = ""

    @property
    def size(self) -> int:
        return sum(orphan.size for orphan in self.orphans)


def require_supported(context: UpkeepContext, table: Table) -> None:
    """That what the table's metadata says is all there is to know.

    Raises:
        UnsupportedError: the catalog keeps older states of the table elsewhere, or looks after the files itself; or
            the table says that its files are not its own.
    """
    flavor = flavor_of(context.catalog, dict(context.store.catalog.properties))
    name = ".".join(table.name())
    if flavor == "nessie":
        raise UnsupportedError(
            f"orphans of {name} cannot be told from here",
            cause="Nessie's branches and history refer to files that the table's current metadata does not name",
            hint="nessie-gc, which comes with Nessie",
        )
    if is_service_managed(context.store):
        raise UnsupportedError(
            f"orphans of {name} are not ours to remove",
            cause="S3 Tables removes unreferenced files itself, and permits no other process to",
            hint="the table bucket's maintenance configuration",
        )
    if table.metadata.properties.get("gc.enabled", "true").lower() == "false":
        raise UnsupportedError(
            f"nothing is deleted of {name}",
            cause="its property gc.enabled is false: its files may be others' too",
            hint="set gc.enabled to true if they are not",
        )


def find(context: UpkeepContext, table: Table, age_s: float, *, dry_run: bool = True) -> Search:
    """Looks for orphans. Changes nothing, but for a probe of the storage's clock.

    Args:
        context: of which catalog.
        table: which.
        age_s: orphans younger than this stay.
        dry_run: where nothing may be written, this machine's clock will do.

    Raises:
        SharedLocationError: another table has, or may have, files there.
        NotAllowedError: the listing does not show every file of the table.
        UnsupportedError: orphans cannot be told with this catalog or table.
        IntegrityError: the table's own metadata cannot be read.
        StoppedError: it was told to end.
    """
    require_supported(context, table)
    clear_link_cache()
    table = context.load(".".join(table.name()))
    before = _referenced(context, table)
    places = context.storage_of(table)
    location = canonical_folder(table.location())
    # Before the listing: what is written meanwhile is young, whatever the clock says later.
    now = (about_now if dry_run else storage_now)(places, expired_file_lists.folder_of(table))
    reach("upkeep.orphans.list.before")
    found = {}
    for uri, info in places.list(location):
        raise_if_stopped(context.stop)
        found[uri] = info
    reach("upkeep.orphans.list.after")
    others = require_unreferenced(context, table)
    after, listed = _known(context, table, places)
    require_shown(places, table, before, after, found)
    known = add_link_targets(after)
    unknown_metadata = [u for u in found if u not in known and is_metadata_json(u)]
    unreadable = require_own(context, places, table, unknown_metadata, others)
    search = _sorted_out(table, found, known, listed, unreadable, now, age_s)
    require_no_alias(table, [orphan.uri for orphan in search.orphans], known, found)
    return search


def _known(context: UpkeepContext, table: Table, places: TableStorage) -> tuple[Files, set[str]]:
    # The table first, then the lists: an expiry in between moves files from it to a list that is there before.
    table = context.load(".".join(table.name()))
    known = _referenced(context, table)
    expired = expired_file_lists.waiting(places, table)
    return known, {canonical_uri(file.uri) for e in expired for file in e.files} - known.keys()


def _referenced(context: UpkeepContext, table: Table) -> Files:
    return find_reachable_files(context.store, table, context.stop)


def _sorted_out(
    table: Table,
    found: dict[str, ObjectInfo],
    known: set[str],
    listed: set[str],
    unreadable: set[str],
    now: datetime,
    age_s: float,
) -> Search:
    unknown: list[str] = []
    loose: list[Orphan] = []
    waiting = 0
    layout = Layout(table)
    for uri, info in found.items():
        if uri in known or expired_file_lists.is_list(uri):
            continue
        if uri in listed:
            waiting += 1
            continue
        kind = layout.kind(uri, found) if uri not in unreadable else None
        if kind is None:
            if not layout.is_checksum(uri):
                unknown.append(uri)
        else:
            loose.append(Orphan(uri, info.size, kind, info.last_modified))
    since = now - timedelta(seconds=age_s)
    old = tuple(orphan for orphan in loose if orphan.written < since)
    young = [orphan for orphan in loose if orphan.written >= since]
    return Search(
        table=table,
        age_s=age_s,
        orphans=old,
        young=len(young),
        young_size=sum(orphan.size for orphan in young),
        unknown=tuple(unknown),
        listed=waiting,
        seen=len(found),
        place=canonical_folder(table.location()),
    )


def remove(context: UpkeepContext, search: Search) -> DeletedFiles:
    """Deletes the orphans that a search found. The table is looked at again before each batch of them.

    Raises:
        IntegrityError: its metadata cannot be read any more. What was deleted until then were orphans.
        NotAllowedError: the table's folder was moved since the search.
        StoppedError: it was told to end.
    """
    clear_link_cache()
    places = context.storage_of(search.table)
    done = DeletedFiles()
    seen: str | None = None
    needed: set[str] = set()
    for i in range(0, len(search.orphans), _BATCH):
        if context.stop.is_set():
            done.left |= {orphan.uri: None for orphan in search.orphans[i:]}
            break
        reach("upkeep.orphans.look.before")
        table = context.load(".".join(search.table.name()))
        if table.metadata_location != seen:
            require_same_place(table, search.place)
            known, listed = _known(context, table, places)
            needed, seen = add_link_targets(known) | listed, table.metadata_location
        reach("upkeep.orphans.look.after")
        part = [(o.uri, o.size) for o in search.orphans[i : i + _BATCH] if o.uri not in needed]
        done.add(bulk_delete.delete_files(places, part, context.stop))
        if done.left:
            break
    return done


def run(context: UpkeepContext, table: Table, step: Step) -> Outcome:
    """Looks for orphans older than `step.options["age_s"]` and deletes them.

    Raises:
        SharedLocationError: another table has, or may have, files there. Nothing was deleted.
        NotAllowedError: the listing does not show every file of the table. Nothing was deleted.
        IntegrityError: the table's own metadata cannot be read.
        UnavailableError: catalog or storage does not answer.
    """
    age_s = float(str(step.options["age_s"]))
    try:
        search = find(context, table, age_s, dry_run=False)
    except UnsupportedError as error:
        return Outcome("orphans", "unsupported", reason=error.cause or error.message, hint=error.hint)
    if not search.orphans:
        return Outcome("orphans", "nothing")
    return removal_outcome("orphans", remove(context, search))
