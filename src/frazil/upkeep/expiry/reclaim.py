"""Deletes the files of expired snapshots when the grace of those who may still read them is over.

`run(context, table, Step("reclaim", options={"grace_s": 3600.0}))`. What is to be deleted stands on lists that `expire`
has left (`lists`). Nothing is believed: the table is loaded anew, all that it refers to by then is taken off, and what
is left is deleted where it lies in the table's own folders. A list goes when all its files are gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.catalogs import local_path
from frazil.errors import UnavailableError
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.tables import bulk_delete
from frazil.tables.durability import sync_files
from frazil.tables.metadata.locations import (
    TableStorage,
    add_link_targets,
    canonical_uri,
    clear_link_cache,
    filter_own_files,
    is_service_managed,
)
from frazil.tables.metadata.reachable import ReferencedFile, find_reachable_files
from frazil.upkeep.expiry import expired_file_lists
from frazil.upkeep.expiry.clock import about_now, storage_now
from frazil.upkeep.expiry.expired_file_lists import ExpiredList
from frazil.upkeep.expiry.shared_locations import require_alone, require_free
from frazil.upkeep.model import Outcome, Step, removal_outcome

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext

log = get_logger(__name__)

#: Seconds after which a list whose snapshots all still exist is a crash's, and no commit under way.
_UNDER_WAY_S = 3600.0
#: Files younger than this may be in the system's memory only.
_YOUNG_S = 3600.0


@dataclass(frozen=True)
class Waiting:
    """What waits to be deleted.

    Attributes:
        lists: on which it stands.
        files: on them.
        size: their bytes.
        due: how many of the files may be deleted now.
        due_size: their bytes.
    """

    lists: int
    files: int
    size: int
    due: int
    due_size: int


def waiting(context: UpkeepContext, table: Table, grace_s: float) -> Waiting:
    """What a reclaim would find now. For plans and people; it changes nothing."""
    places = context.storage_of(table)
    found = [] if is_service_managed(context.store) else expired_file_lists.waiting(places, table)
    if not found:
        return Waiting(0, 0, 0, 0, 0)
    now = about_now(places, expired_file_lists.folder_of(table))
    due = [e for e in found if e.committed and e.is_due(now, grace_s)]
    return Waiting(len(found), *_sum(found), *_sum(due))


def _sum(found: Iterable[ExpiredList]) -> tuple[int, int]:
    listed = list(found)
    return sum(len(e.files) for e in listed), sum(e.size for e in listed)


def run(context: UpkeepContext, table: Table, step: Step) -> Outcome:
    """Deletes what is due.

    Raises:
        SharedLocationError: the table's files are another table's too, or another table refers to one of those that
            are due, or nobody can say. Nothing was deleted.
        IntegrityError: the table's own metadata cannot be read, and nobody knows what it needs. Nothing was deleted.
        UnavailableError: the storage does not answer. What is not deleted yet is left for the next run.
    """
    grace_s = float(str(step.options["grace_s"]))
    clear_link_cache()
    table = context.load(".".join(table.name()))
    places = context.storage_of(table)
    found = [] if is_service_managed(context.store) else expired_file_lists.waiting(places, table)
    if not found:
        return Outcome("reclaim", "nothing")
    now = storage_now(places, expired_file_lists.folder_of(table))
    due = [expired for expired in found if _settled(places, table, expired, now) and expired.is_due(now, grace_s)]
    if not due:
        return Outcome("reclaim", "nothing", reason=f"{len(found)} lists wait for the end of their grace")
    require_alone(context, table)
    # Half of it: the storage's clock, which tells the grace, may run at another pace than ours.
    require_free(context, table, filter_own_files(table, (f.uri for e in due for f in e.files)), believed_s=grace_s / 2)
    return _reclaim(context, table, places, due)


def _settled(places: TableStorage, table: Table, expired: ExpiredList, now: datetime) -> bool:
    """Whether a list's snapshots are known to be gone. What a crash left undecided is decided here."""
    if expired.committed:
        return True
    left = {s.snapshot_id for s in table.metadata.snapshots} & set(expired.snapshots)
    if not left:
        # The commit has landed and its list was not told. Its grace begins now.
        expired_file_lists.write(places, expired_file_lists.as_committed(expired))
    elif expired.is_due(now, _UNDER_WAY_S):
        log.info("a list of expired files is dropped: its snapshots are still there", uri=expired.uri)
        expired_file_lists.drop(places, expired)
    return False


def _reclaim(context: UpkeepContext, table: Table, places: TableStorage, due: list[ExpiredList]) -> Outcome:
    reach("upkeep.reclaim.look.before")
    needed = find_reachable_files(context.store, table, context.stop)
    _sync_young(file.uri for file in needed.values())
    again = context.load(".".join(table.name()))
    if again.metadata_location != table.metadata_location:
        needed |= find_reachable_files(context.store, again, context.stop)
    reach("upkeep.reclaim.look.after")
    needed_uris = add_link_targets(needed)
    done = bulk_delete.DeletedFiles()
    for number, expired in enumerate(due):
        if context.stop.is_set():
            done.left |= {file.uri: None for rest in due[number:] for file in rest.files}
            break
        unneeded = filter_own_files(table, (f.uri for f in expired.files)) - needed_uris
        free = [(f.uri, f.size) for f in expired.files if canonical_uri(f.uri) in unneeded]
        some = bulk_delete.delete_files(places, free, context.stop)
        done.add(some)
        if not some.left:
            reach("upkeep.reclaim.list.before")
            expired_file_lists.drop(places, expired)
            reach("upkeep.reclaim.list.after")
            continue
        _keep(places, expired, [f for f in expired.files if f.uri in some.left])
        if some.error is not None:
            break
    return removal_outcome("reclaim", done)


def _keep(places: TableStorage, expired: ExpiredList, left: list[ReferencedFile]) -> None:
    """A list with what could not be deleted, due at once."""
    begins = expired.not_before or expired.written
    expired_file_lists.write(places, replace(expired, files=tuple(left), not_before=begins))


def _sync_young(uris: Iterable[str]) -> None:
    """Puts on disk what may have replaced the files that are deleted next, where it lies on this machine."""
    since = time.time() - _YOUNG_S
    paths = [path for uri in uris if (path := local_path(uri)) is not None]
    while True:
        paths = [path for path in paths if _changed_since(path, since)]
        try:
            return sync_files(paths)
        except UnavailableError as error:
            # Another writer's commit deletes a former metadata.json: nobody needs it any more.
            if not isinstance(error.__cause__, FileNotFoundError) or all(Path(path).exists() for path in paths):
                raise


def _changed_since(path: str, since: float) -> bool:
    try:
        return Path(path).stat().st_mtime > since
    except OSError:  # gone, or a server's: what is read later says so
        return False
