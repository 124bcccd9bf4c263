"""Files of a table that have gone: expected while compaction and expiry run, a fault if the table still names them."""

from __future__ import annotations

import errno
from collections.abc import Hashable

from frazil.errors import IntegrityError, UnavailableError

_GONE = ("NO_SUCH_KEY", "NoSuchKey", "HTTP status: 404", "HTTP response code: 404", "Path does not exist")


class MissingFileCheck:
    """Decides, while one thing is being read, whether a failed look into storage is worth a fresh plan."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._seen: set[Hashable] = set()

    def check(self, error: OSError, snapshot: Hashable) -> None:
        """Returns if the file was of a snapshot that may be outdated: load the table anew.

        Raises:
            IntegrityError: the table was loaded anew, has the same snapshot, and the file is still missing.
            UnavailableError: the storage failed otherwise.
        """
        if not is_missing_file(error):
            raise UnavailableError(
                f"the files of topic '{self._topic}' cannot be read", hint="frazil doctor"
            ) from error
        if snapshot in self._seen:
            raise IntegrityError(
                f"a file of topic '{self._topic}' is missing although its table needs it",
                hint="restore the table from a backup, or roll it back",
            ) from error
        self._seen.add(snapshot)


def is_missing_file(error: OSError) -> bool:
    return isinstance(error, FileNotFoundError) or error.errno == errno.ENOENT or any(w in str(error) for w in _GONE)
