"""Sources of an object's bytes: buckets and folders. A read returns the content that was listed, or fails.

Requests to a bucket name version and etag. For a file, time and size are compared before the first read and after the
last.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from frazil.content.buckets import folder_of, is_folder, require_request
from frazil.content.s3_errors import from_boto
from frazil.content.scan.folder import etag as folder_etag
from frazil.errors import FrazilError, NotFoundError, UsageError, first_line
from frazil.extract import Unsupported
from frazil.extract.engine.source import ObjectChanged, ObjectGone, ObjectRef, RangeBeyondEnd, Source, StorageError
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage.clients import connect
from frazil.storage.faults import from_obstore
from frazil.storage.s3_client import client_of
from frazil.storage.store import check_key
from frazil.storage.uri import Location

if TYPE_CHECKING:
    from obstore import GetOptions

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_OPEN_FILE = _OPEN | os.O_NONBLOCK | os.O_NOCTTY
_OPEN_FOLDER = _OPEN | os.O_DIRECTORY


def open_source(wanted: ObjectRef, s3: S3Settings, network: NetworkSettings) -> Source:
    """Opens an object. A bucket gets no request before the first read."""
    if is_folder(wanted.bucket):
        return FileSource(wanted)
    try:
        require_request(wanted.bucket, wanted.key)
    except UsageError as error:
        raise Unsupported(error.message) from error
    return BucketSource(wanted, s3, network)


# -- folders -----------------------------------------------------------------------------------------------------------


class FileSource:
    """A file of a folder. Symbolic links, also in its path, and anything that is not a file are refused."""

    def __init__(self, wanted: ObjectRef) -> None:
        self._etag, self._file = wanted.etag, -1
        self._file = _open_file(str(folder_of(wanted.bucket)), wanted.key)
        try:
            self.check()
        except BaseException:
            self.close()
            raise

    def fetch(self, start: int, end: int) -> bytes:
        try:
            return _pread(self._file, start, end - start)
        except OSError as error:
            raise StorageError(f"storage: {error.strerror or error}") from error

    def total(self) -> int:
        return os.fstat(self._file).st_size

    def check(self) -> None:
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            raise ObjectGone("it is not a file any more")
        if self._etag is not None and folder_etag(found.st_mtime_ns, found.st_size) != self._etag:
            raise ObjectChanged("the file has changed since it was listed")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _pread(file: int, start: int, length: int) -> bytes:
    data = os.pread(file, length, start)
    if len(data) == length or not data:
        return data
    parts = [data]
    got = len(data)
    while got < length and (data := os.pread(file, length - got, start + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def _open_file(root: str, key: str) -> int:
    *folders, name = key.split("/")
    if any(part in ("", ".", "..") for part in (*folders, name)) or "\0" in key:
        raise ObjectGone("no file can have this name")
    try:
        at = os.open(os.path.realpath(root), os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    except OSError as error:
        raise StorageError(f"storage: the folder {root} cannot be opened: {error.strerror}") from error
    try:
        for part in folders:
            at, before = os.open(part, _OPEN_FOLDER, dir_fd=at), at
            os.close(before)
        if not stat.S_ISREG(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            raise ObjectGone("it is not a file any more")  # opening a device can have effects
        return os.open(name, _OPEN_FILE, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            raise ObjectGone("the file does not exist any more") from error
        raise StorageError(f"storage: {error.strerror or error}") from error
    finally:
        os.close(at)


# -- buckets -----------------------------------------------------------------------------------------------------------


class BucketSource:
    """An object of a bucket."""

    def __init__(self, wanted: ObjectRef, s3: S3Settings, network: NetworkSettings) -> None:
        self._wanted, self._s3, self._network = wanted, s3, network
        self._etag = wanted.etag
        # An object without a version id is the latest one, or else has the id `null`.
        self._version = wanted.version_id or (None if wanted.is_latest else "null")
        self._by_obstore = _is_plain(wanted.key)

    def fetch(self, start: int, end: int) -> bytes:
        get = self._get_by_obstore if self._by_obstore else self._get_by_boto
        data, etag, _ = get(start, end)
        # Some servers ignore conditions and answer with what they have.
        if self._etag is not None and etag is not None and etag != self._etag:
            raise ObjectChanged("the object has changed since it was listed")
        self._etag = self._etag or etag
        return data

    def total(self) -> int:
        get = self._get_by_obstore if self._by_obstore else self._get_by_boto
        try:
            return get(0, 1)[2]
        except RangeBeyondEnd:  # not even one byte
            return 0

    def check(self) -> None:
        """Does nothing: each request named the content."""

    def close(self) -> None:
        """Does nothing: connections belong to the process."""

    def _get_by_obstore(self, start: int, end: int) -> tuple[bytes, str | None, int]:
        from obstore.exceptions import BaseError, PreconditionError

        options: GetOptions = {"range": (start, end)}
        if self._etag is not None:
            options["if_match"] = f'"{self._etag}"'
        if self._version is not None:
            options["version"] = self._version
        try:
            found = _store(self._wanted.bucket, self._s3, self._network).get(self._wanted.key, options=options)
            meta = found.meta
            return bytes(found.bytes()), _unquoted(meta["e_tag"]), meta["size"]
        except PreconditionError as error:
            raise ObjectChanged("the object has changed since it was listed") from error
        except (BaseError, FileNotFoundError) as error:
            if "InvalidRange" in str(error) or "status code: 416" in str(error):
                raise RangeBeyondEnd("the object is shorter than when it was listed") from error
            if "InvalidObjectState" in str(error):
                raise Unsupported("it is archived, and has to be restored first") from error
            where = f"s3://{self._wanted.bucket}"
            raise _translate_error(from_obstore(error, f"{where}/{self._wanted.key}", where)) from error

    def _get_by_boto(self, start: int, end: int) -> tuple[bytes, str | None, int]:
        """Requests keys that obstore refuses, such as `a//b` or with control characters."""
        from botocore.exceptions import BotoCoreError, ClientError

        asked: dict[str, Any] = {"Bucket": self._wanted.bucket, "Key": self._wanted.key}
        asked["Range"] = f"bytes={start}-{end - 1}"
        if self._etag is not None:
            asked["IfMatch"] = f'"{self._etag}"'
        if self._version is not None:
            asked["VersionId"] = self._version
        try:
            found = client_of(self._s3, self._network).get_object(**asked)
            total = int(found["ContentRange"].rpartition("/")[2]) if "ContentRange" in found else found["ContentLength"]
            return found["Body"].read(), _unquoted(found.get("ETag")), total
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in ("PreconditionFailed", "412"):
                raise ObjectChanged("the object has changed since it was listed") from error
            if code in ("InvalidRange", "416"):
                raise RangeBeyondEnd("the object is shorter than when it was listed") from error
            if code == "InvalidObjectState":
                raise Unsupported("it is archived, and has to be restored first") from error
            raise _translate_error(from_boto(error, self._wanted.bucket, self._wanted.key)) from error
        except BotoCoreError as error:
            raise _translate_error(from_boto(error, self._wanted.bucket, self._wanted.key)) from error


@lru_cache(maxsize=64)
def _store(bucket: str, s3: S3Settings, network: NetworkSettings) -> Any:
    """Returns a client that retries as the network settings say."""
    return connect(Location("s3", bucket, ""), s3, network).bulk


def _is_plain(key: str) -> bool:
    try:
        check_key(key)
    except FrazilError:
        return False
    return True


def _unquoted(etag: str | None) -> str | None:
    return etag.strip('"') or None if etag else None


def _translate_error(error: FrazilError) -> ObjectGone | StorageError:
    if isinstance(error, NotFoundError) and "bucket not found" not in error.message:
        return ObjectGone("the object does not exist any more")
    cause = f": {error.cause}" if error.cause else ""
    return StorageError(f"storage: {first_line(error)}{cause}")
