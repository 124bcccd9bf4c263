"""Looks into a table's files again where storage was away for a moment: a long read does not end with one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from frazil.errors import UnavailableError
from frazil.observe.resilience import retry
from frazil.settings import NetworkSettings
from frazil.topics.reading.vanished import is_missing_file

T = TypeVar("T")

_REFUSED = ("ACCESS_DENIED", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "Forbidden")


class _StorageUnavailableError(UnavailableError):
    """Storage did not answer as it should; the cause is its own error."""


def read_with_retry(read: Callable[[], T], network: NetworkSettings) -> T:
    """Calls what reads from storage and may be called twice, as often as `network.retry_*` allow.

    Raises:
        OSError: the last one. A file that has gone and a refusal are answers, and come out at once.
    """

    def once() -> T:
        try:
            return read()
        except OSError as error:
            if is_missing_file(error) or is_access_denied(error):
                raise
            raise _StorageUnavailableError(f"storage does not answer: {error}") from error

    try:
        return retry(once, network, operation="topics.read")
    except _StorageUnavailableError as away:
        assert away.__cause__ is not None
        raise away.__cause__ from None


def is_access_denied(error: OSError) -> bool:
    """Whether the storage has answered, and does not allow it."""
    return isinstance(error, PermissionError) or any(word in str(error) for word in _REFUSED)
