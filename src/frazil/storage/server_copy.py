"""Copies within one S3 server whose result is known without reading it: the server states the SHA-256."""

from __future__ import annotations

import base64
import threading
from datetime import datetime
from typing import Any

from frazil.errors import FrazilError
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import Location
from frazil.storage.object_lock import MODE
from frazil.storage.s3_client import client_of, translated

#: S3 copies larger objects in parts only, and then states no checksum of the whole.
_LARGEST = 5 * 1024**3
#: After so many refusals without a success this process does not try again: each costs a request.
_PATIENCE = 4


class ServerCopies:
    """Asks a server for checksums and copies, as long as it gives them. Thread safe.

    AWS compares a SHA-256 with the bytes when it receives them. Of copies it computes it.
    """

    def __init__(self, s3: S3Settings, network: NetworkSettings) -> None:
        self._s3, self._network = s3, network
        self._lock = threading.Lock()
        self._successes = {"checksum": 0, "copy": 0}
        self._refusals = {"checksum": 0, "copy": 0}

    def find_sha256(self, source: Location) -> tuple[int, str] | None:
        """Returns size and SHA-256 of an object, if the server vouches for that of the whole object."""
        if not self._is_worth("checksum"):
            return None
        answer = self._ask(
            lambda client: client.head_object(Bucket=source.bucket, Key=source.key, ChecksumMode="ENABLED"), source
        )
        sha256 = None if answer is None else _sha256_of(answer)
        self._count("checksum", sha256 is not None)
        return None if answer is None or sha256 is None else (answer["ContentLength"], sha256)

    def copy(self, source: Location, target: Location, size: int, sha256: str, lock_until: datetime | None) -> bool:
        """Copies an object that has this SHA-256; False: nothing was copied of which the server says that."""
        if size > _LARGEST or not self._is_worth("copy"):
            return False
        retention: dict[str, Any] = (
            {} if lock_until is None else {"ObjectLockMode": MODE, "ObjectLockRetainUntilDate": lock_until}
        )
        answer = self._ask(
            lambda client: client.copy_object(
                Bucket=target.bucket, Key=target.key, CopySource={"Bucket": source.bucket, "Key": source.key},
                ChecksumAlgorithm="SHA256", **retention,
            ), target
        )  # fmt: skip
        is_equal = answer is not None and _sha256_of(answer.get("CopyObjectResult", {})) == sha256
        self._count("copy", is_equal)
        return is_equal

    def _ask(self, request: Any, where: Location) -> dict[str, Any] | None:
        try:
            with translated(where.bucket, where.key):
                return request(client_of(self._s3, self._network))  # type: ignore[no-any-return]
        except FrazilError:
            return None  # the bytes are copied through this process, which tells what is wrong

    def _is_worth(self, what: str) -> bool:
        with self._lock:
            return self._successes[what] > 0 or self._refusals[what] < _PATIENCE

    def _count(self, what: str, is_success: bool) -> None:
        with self._lock:
            (self._successes if is_success else self._refusals)[what] += 1


def _sha256_of(answer: dict[str, Any]) -> str | None:
    """Returns the SHA-256 of a whole object, in hex; None for a composite checksum of parts."""
    told = answer.get("ChecksumSHA256")
    if not told or "-" in told or answer.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    return base64.b64decode(told).hex()
