"""Tells the log of files that the table has and a folder has no more.

A folder is seen as a whole, by one clock and without events that may be late: what was not seen is looked at once more,
and where it is not there, it is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from frazil.content.looking.folder import Folder
from frazil.content.looking.telling import LateTeller


def tell_what_is_gone(folder: Folder, keys: Sequence[tuple[str, str]], teller: LateTeller) -> int:
    """Tells of those keys that have no file, and gives their number. Nothing is said of what cannot be looked at.

    Args:
        folder: where.
        keys: key and version of rows that the listing did not show. After a scan that broke off and went on, many are
            there: they were seen before.
        teller: tells the log.
    """
    count = 0
    for observed_at, found in folder.ask_what_can_be_seen([key for key, _ in keys]):
        gone = [thing for thing in found if not thing["exists"]]
        teller.tell(gone, observed_at)
        count += len(gone)
    return count
