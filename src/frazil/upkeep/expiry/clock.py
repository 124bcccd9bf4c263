"""The clock of a storage, which determines the age of its files; this machine's clock may differ.

A small object is written, inspected and deleted: its modification time is the storage's now.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from frazil.errors import NotAllowedError, UnavailableError, UnsupportedError
from frazil.storage import join, parse
from frazil.storage.faults import from_os
from frazil.tables.metadata.locations import TableStorage

#: Prefix of such an object's name; one that a crash left behind is an orphan.
PROBE = "frazil-clock-"


def storage_now(places: TableStorage, folder: str) -> datetime:
    """Returns the time by the clock of the storage of a folder.

    Raises:
        NotAllowedError: the folder is not writable.
    """
    location = parse(folder)
    if location.scheme == "file":
        return _local_now(location.path)
    store, key = places.find(join(folder, f"{PROBE}{uuid.uuid4().hex}"))
    store.put(key, b"frazil asks for the time")
    try:
        return store.head(key).last_modified
    finally:
        with suppress(UnavailableError):  # then it is an orphan
            store.delete(key)


def about_now(places: TableStorage, folder: str) -> datetime:
    """Returns the same, or this machine's time if the folder is not writable. For dry runs only."""
    try:
        return storage_now(places, folder)
    except (NotAllowedError, UnsupportedError):
        return datetime.fromtimestamp(time.time(), UTC)


def _local_now(folder: Path) -> datetime:
    """A folder may lie on another machine, and a file made here gets that machine's time."""
    # The ending that the storage room gives to what is not there yet: such files are no objects.
    path = folder / f".{uuid.uuid4().hex}.frazil-tmp"
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, b"?")
            return datetime.fromtimestamp(os.fstat(handle).st_mtime, UTC)
        finally:
            os.close(handle)
            path.unlink()
    except OSError as error:
        raise from_os(error, str(folder)) from error
