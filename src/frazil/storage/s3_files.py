"""Files in a bucket of S3, by boto3: obstore tells neither the checksum nor the restore state of an object."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from frazil.errors import (
    ConflictError,
    FrazilError,
    IntegrityError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage.files import (
    ArchivedError,
    FileDigests,
    RestoreAnswer,
    RestoredCopy,
    RestoreTier,
    StoredFile,
    read_parts,
    replaced,
)
from frazil.storage.s3_client import client_of, from_boto, translated
from frazil.storage.store import CHUNK, sha256_of

_PARTS_AT_ONCE = 4
_EXISTS = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})
_NO_ARCHIVE = frozenset({"MethodNotAllowed", "NotImplemented", "405", "501"})


@dataclass(frozen=True)
class _Sent:
    """An upload as the server has acknowledged it: `version_id` is empty where the bucket keeps no versions."""

    etag: str
    version_id: str

    @classmethod
    def of(cls, answer: dict[str, Any]) -> _Sent:
        version_id = answer.get("VersionId") or ""
        return cls(answer["ETag"].strip('"'), "" if version_id == "null" else version_id)


class S3Files:
    """A `FileStore` on a bucket of S3, or of a server that speaks its protocol."""

    def __init__(self, bucket: str, s3: S3Settings, network: NetworkSettings) -> None:
        self._bucket, self._network = bucket, network
        self._client = client_of(s3, network)

    def find(self, key: str, version_id: str = "") -> StoredFile | None:
        try:
            with translated(self._bucket, key):
                answer = self._client.head_object(Bucket=self._bucket, Key=key, **_version(version_id))
        except NotFoundError:
            self._require_bucket()  # an answer to HEAD does not say which of the two is missing
            return None
        return _stored(answer)

    def holds(self, key: str, found: StoredFile, digests: FileDigests) -> bool | None:
        """Compares by the ETag, an MD5 unless KMS encrypts; else by the SHA-256 of S3, or by reading the object.

        S3 compares the SHA-256 with what it receives. Some servers only repeat what they were told, so that it counts
        alone only where nothing else can.
        """
        if found.size != digests.size:
            return False
        count = len(digests.parts_sha256)
        etag = _combined(digests.parts_md5, "md5").hex()
        if found.etag == (etag if count == 1 else f"{etag}-{count}"):
            return True
        told, is_by_kms = self._checksum(key, found)
        is_same = told == _base64(_combined(digests.parts_sha256, "sha256"))
        if is_same and is_by_kms:
            return True
        try:
            return sha256_of(self.read(key, found)) == digests.sha256
        except ArchivedError:
            return is_same or None

    def upload(
        self, key: str, file: Path, digests: FileDigests, *, storage_class: str, content_type: str, replace: bool
    ) -> StoredFile:
        about = {"StorageClass": storage_class, "ContentType": content_type}
        condition = {} if replace else {"IfNoneMatch": "*"}
        send = self._upload_whole if len(digests.parts_sha256) == 1 else self._upload_parts
        try:
            sent = send(key, file, digests, about, condition)
        except UnsupportedError:
            if not condition or self.find(key) is not None:
                raise
            sent = send(key, file, digests, about, {})  # an old server without conditional writes
        where = f"s3://{self._bucket}/{key}"
        found = self.find(key, sent.version_id)
        if found is not None and self.holds(key, found, digests):
            return found
        if not sent.version_id and (found is None or found.etag != sent.etag):
            raise replaced(where)
        self._discard(key, sent)
        raise IntegrityError(
            f"{where} does not match what was sent, or its checksum cannot be verified",
            cause=f"sent: {digests.size:,} bytes, SHA-256 {digests.sha256}",
            hint="run the command again; if it still fails, check the server",
        )

    def read(self, key: str, found: StoredFile) -> Iterator[bytes]:
        position, failures, is_done = 0, 0, False
        while not is_done:
            try:
                for chunk in self._open(key, found, position):
                    position += len(chunk)
                    failures = 0
                    yield chunk
                is_done = True
            except UnavailableError:
                failures += 1
                if failures >= self._network.retry_attempts:
                    raise

    def restore(self, key: str, version_id: str, days: int, tier: RestoreTier) -> RestoreAnswer:
        request = {"Days": days, "GlacierJobParameters": {"Tier": tier}}
        where = f"s3://{self._bucket}/{key}"
        try:
            answer = self._client.restore_object(
                Bucket=self._bucket, Key=key, RestoreRequest=request, **_version(version_id)
            )
        except Exception as error:
            code = _code(error)
            if code == "RestoreAlreadyInProgress":
                return "in_progress"
            raise self._restore_error(error, code, where, key) from error
        return "extended" if answer["ResponseMetadata"]["HTTPStatusCode"] == 200 else "accepted"

    def _restore_error(self, error: Exception, code: str, where: str, key: str) -> FrazilError:
        if code == "GlacierExpeditedRetrievalNotAvailable":
            return UnavailableError(
                f"expedited restore of {where} is currently not available", cause=code, hint="--tier Standard"
            )
        if code == "InvalidObjectState":
            return ConflictError(f"{where} is not in an archive storage class", cause=code, hint="frazil docs fetch")
        if code in _NO_ARCHIVE:
            return UnsupportedError(
                f"the server of {where} does not support restores", cause=code, hint="frazil docs fetch"
            )
        return from_boto(error, self._bucket, key)

    # -- uploads

    def _upload_whole(
        self, key: str, file: Path, digests: FileDigests, about: dict[str, Any], condition: dict[str, str]
    ) -> _Sent:
        (content,) = _unchanged_parts(file, digests)
        with _refused(self._bucket, key):
            answer = self._client.put_object(
                Bucket=self._bucket, Key=key, Body=content, ChecksumAlgorithm="SHA256",
                ChecksumSHA256=_base64(digests.parts_sha256[0]), **about, **condition,
            )  # fmt: skip
        return _Sent.of(answer)

    def _upload_parts(
        self, key: str, file: Path, digests: FileDigests, about: dict[str, Any], condition: dict[str, str]
    ) -> _Sent:
        with _refused(self._bucket, key):
            upload_id = self._client.create_multipart_upload(
                Bucket=self._bucket, Key=key, ChecksumAlgorithm="SHA256", **about
            )["UploadId"]
        this = {"Bucket": self._bucket, "Key": key, "UploadId": upload_id}
        try:
            listed = self._send_parts(this, file, digests)
            with _refused(self._bucket, key):
                answer = self._client.complete_multipart_upload(**this, MultipartUpload={"Parts": listed}, **condition)
        except BaseException:
            with suppress(Exception):  # the first error is told; parts that stay are removed by a rule of the bucket
                self._client.abort_multipart_upload(**this)
            raise
        return _Sent.of(answer)

    def _send_parts(self, this: dict[str, str], file: Path, digests: FileDigests) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        pending: deque[Future[dict[str, Any]]] = deque()
        with ThreadPoolExecutor(_PARTS_AT_ONCE, "frazil-upload") as threads:
            for number, part in enumerate(_unchanged_parts(file, digests), start=1):
                pending.append(threads.submit(self._send_part, this, number, part, digests.parts_sha256[number - 1]))
                while len(pending) > _PARTS_AT_ONCE:
                    sent.append(pending.popleft().result())
            sent += [future.result() for future in pending]
        return sent

    def _send_part(self, this: dict[str, str], number: int, part: bytes, sha256: bytes) -> dict[str, Any]:
        checksum = {"ChecksumSHA256": _base64(sha256)}
        with translated(this["Bucket"], this["Key"]):
            answer = self._client.upload_part(
                **this, PartNumber=number, Body=part, ChecksumAlgorithm="SHA256", **checksum
            )
        return {"PartNumber": number, "ETag": answer["ETag"], **checksum}

    def _checksum(self, key: str, found: StoredFile) -> tuple[str | None, bool]:
        """S3's SHA-256 of an object, or of its parts, if it has one; and whether KMS encrypts the object."""
        try:
            with translated(self._bucket, key):
                answer = self._client.head_object(
                    Bucket=self._bucket, Key=key, ChecksumMode="ENABLED", **_version(found.version_id)
                )
        except (NotAllowedError, NotFoundError):
            return None, False
        told = str(answer.get("ChecksumSHA256") or "").partition("-")[0]
        return told or None, str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")

    def _discard(self, key: str, sent: _Sent) -> None:
        """Removes an upload that failed verification, so that it is not taken for the file; nothing else."""
        ours = _version(sent.version_id) or {"IfMatch": f'"{sent.etag}"'}
        with suppress(Exception):  # the caller reports the failure; some servers lack such conditions
            self._client.delete_object(Bucket=self._bucket, Key=key, **ours)

    # -- requests

    def _open(self, key: str, found: StoredFile, position: int) -> Iterator[bytes]:
        asked: dict[str, Any] = {"IfMatch": f'"{found.etag}"', **_version(found.version_id)}
        if position:
            asked["Range"] = f"bytes={position}-"
        try:
            with translated(self._bucket, key):
                answer = self._client.get_object(Bucket=self._bucket, Key=key, **asked)
                yield from answer["Body"].iter_chunks(CHUNK)
        except FrazilError as error:
            cause = error.__cause__
            code = _code(cause) if isinstance(cause, Exception) else ""
            if code == "InvalidObjectState":
                raise ArchivedError(f"s3://{self._bucket}/{key} must be restored first", cause=code) from error
            if code in _EXISTS:
                raise ConflictError(f"s3://{self._bucket}/{key} was replaced in the meantime", hint="again") from error
            raise

    def _require_bucket(self) -> None:
        with translated(self._bucket), suppress(self._client.exceptions.NoSuchKey):
            self._client.list_objects_v2(Bucket=self._bucket, MaxKeys=1)


@contextmanager
def _refused(bucket: str, key: str) -> Iterator[None]:
    """Raises the errors of a conditional write within this block as ours."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (ClientError, BotoCoreError) as error:
        where, code = f"s3://{bucket}/{key}", _code(error)
        if code in _EXISTS:
            raise ConflictError(f"{where} already exists", cause=code) from error
        if code == "InvalidStorageClass":
            raise UnsupportedError(
                f"the server of {where} does not support this storage class", cause=code, hint="--storage-tier standard"
            ) from error
        raise from_boto(error, bucket, key) from error


def _stored(answer: dict[str, Any]) -> StoredFile:
    version = answer.get("VersionId") or ""
    return StoredFile(
        size=answer["ContentLength"],
        etag=answer["ETag"].strip('"'),
        last_modified=answer["LastModified"],
        version_id="" if version == "null" else version,
        storage_class=answer.get("StorageClass") or "STANDARD",
        content_type=answer.get("ContentType"),
        restored=parse_restore(answer.get("Restore")),
    )


def parse_restore(header: str | None) -> RestoredCopy | None:
    """Reads the header `x-amz-restore`."""
    if not header:
        return None
    found = re.search(r'expiry-date="([^"]+)"', header)
    return RestoredCopy('ongoing-request="true"' in header, parsedate_to_datetime(found[1]) if found else None)


def _version(version_id: str) -> dict[str, str]:
    return {"VersionId": version_id} if version_id and version_id != "null" else {}


def _unchanged_parts(file: Path, digests: FileDigests) -> Iterator[bytes]:
    """Yields the parts of a file, each compared with its digest.

    Raises:
        IntegrityError: the file was changed.
    """
    for part, sha256 in zip_longest(read_parts(file, digests.part_size), digests.parts_sha256):
        if part is None or hashlib.sha256(part).digest() != sha256:
            raise IntegrityError(f"{file} was changed while it was being read", hint="run the command again")
        yield part


def _code(error: BaseException | None) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _combined(digests: Sequence[bytes], algorithm: str) -> bytes:
    """S3's checksum of an object in parts: that of the checksums of its parts."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.new(algorithm, b"".join(digests), usedforsecurity=False).digest()
