"""Reads from storage that may fail for a moment, and from tables whose files may be replaced during a read."""

from __future__ import annotations

import errno
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeVar

from frazil.errors import FrazilError, IntegrityError, UnavailableError
from frazil.observe.resilience import retry
from frazil.settings import NetworkSettings

if TYPE_CHECKING:
    from pyiceberg.table import Table

T = TypeVar("T")

_MISSING = ("NO_SUCH_KEY", "NoSuchKey", "HTTP status: 404", "HTTP response code: 404", "Path does not exist")
_DENIED = ("ACCESS_DENIED", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "Forbidden")


class _StorageUnavailableError(UnavailableError):
    """A failed request that is worth another try; its cause is the storage's own error."""


def read_with_retry(read: Callable[[], T], network: NetworkSettings) -> T:
    """Calls a read that is safe to repeat, as often as `network.retry_*` allow.

    Raises:
        OSError: the last error. A missing file and denied access are raised at once.
    """

    def once() -> T:
        try:
            return read()
        except OSError as error:
            if is_missing_file(error) or is_access_denied(error):
                raise
            raise _StorageUnavailableError(f"storage does not answer: {error}") from error

    try:
        return retry(once, network, operation="tables.read")
    except _StorageUnavailableError as unavailable:
        assert unavailable.__cause__ is not None
        raise unavailable.__cause__ from None


def is_missing_file(error: OSError) -> bool:
    """Whether a file does not exist, in the words of any file system."""
    return isinstance(error, FileNotFoundError) or error.errno == errno.ENOENT or any(w in str(error) for w in _MISSING)


def is_access_denied(error: OSError) -> bool:
    """Whether the storage has answered, and denies access."""
    return isinstance(error, PermissionError) or any(word in str(error) for word in _DENIED)


class MissingFileCheck:
    """Decides, during one read of a table, whether a failed request is worth a fresh plan.

    Files of a snapshot go missing while compaction and expiry run. That is expected once per snapshot: the table is
    loaded again. A file that the newest snapshot still refers to is a fault.

    Args:
        subject: what is read, for errors: "topic 'orders'", "content.objects".
        hint: what to do about a file that is missing for good.
    """

    def __init__(self, subject: str, hint: str = "restore the table from a backup, or roll it back") -> None:
        self._subject, self._hint = subject, hint
        self._failed: set[Hashable] = set()

    def check(self, error: OSError, snapshot: Hashable) -> None:
        """Returns if the snapshot may be outdated, so that the caller loads the table again.

        Raises:
            IntegrityError: the table was loaded again, has the same snapshot, and the file is still missing.
            UnavailableError: the storage failed for another reason.
        """
        if not is_missing_file(error):
            raise UnavailableError(f"the files of {self._subject} cannot be read", hint="frazil doctor") from error
        if snapshot in self._failed:
            raise IntegrityError(
                f"a file of {self._subject} is missing although its table needs it", hint=self._hint
            ) from error
        self._failed.add(snapshot)


def read_current(
    find: Callable[[], Table | None], read: Callable[[Table], T], missing: Callable[[], FrazilError], subject: str
) -> T:
    """Reads the current version of a table; again on a newer one if its files were replaced during the read.

    Args:
        find: loads the table as it is now.
        read: reads it; called again after a file went missing.
        missing: the error where there is no table.
        subject: what is read, for errors.

    Raises:
        FrazilError: the error of `missing`.
        UnavailableError: the storage does not answer.
        IntegrityError: a file is missing that the table needs.
    """
    files = MissingFileCheck(subject, f"frazil table verify {subject}")
    while True:
        table = find()
        if table is None:
            raise missing()
        try:
            return read(table)
        except OSError as error:
            files.check(error, table.metadata.current_snapshot_id)
