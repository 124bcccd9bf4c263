"""What operating system and servers say when something fails, as our errors. Pure functions of the error."""

from __future__ import annotations

import errno
import re

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PreconditionError,
    UnauthenticatedError,
)

from frazil.errors import (
    ConfigError,
    ConflictError,
    CredentialsError,
    FrazilError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    first_line,
)

# obstore tells status and server's code only within its text.
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_TRANSPORT = (
    ("ConnectionRefused", "connection refused"),
    ("dns error", "unknown host name"),
    ("kind: Timeout", "timeout"),
    ("TimedOut", "timeout"),
    ("InvalidContentType", "the server does not speak TLS"),
    ("certificate", "the server's certificate is not trusted"),
)

_MISSING_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_WRONG_KEYS = {
    "SignatureDoesNotMatch",
    "InvalidAccessKeyId",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
    "AuthenticationFailed",
    "InvalidAuthenticationInfo",
}
_BUSY = {"SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "ServerBusy", "OperationTimedOut"}
_BAD_NAME = {"InvalidBucketName", "KeyTooLongError", "InvalidURI", "InvalidResourceName", "OutOfRangeInput"}


def from_os(error: OSError, where: str) -> FrazilError:
    match error.errno:
        case errno.ENOENT:
            return NotFoundError(f"object not found: {where}", hint="check the name; list the folder above it")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return NotAllowedError(f"not allowed: {where}", hint="check owner, mode and mount of the folder")
        case errno.ENOSPC | errno.EDQUOT:
            return UnavailableError(
                f"no space left for {where}; nothing was written", hint="free some space, then run the command again"
            )
        case errno.ENAMETOOLONG:
            return UsageError(
                f"the name is too long for this file system: {where}", hint="use at most 255 bytes per name"
            )
        case errno.ENOTDIR | errno.EISDIR:
            return UnsupportedError(
                f"{where} would be both an object and a folder, which local storage does not support",
                hint="choose another name, or an S3 store",
            )
        case _:
            return FrazilError(f"cannot read or write {where}", hint="check the disk and the kernel log")


def status_of(error: Exception) -> int | None:
    """Returns the HTTP status in an obstore error, or None if no server answered."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def from_obstore(error: Exception, where: str, bucket: str) -> FrazilError:
    """Translates an obstore error for `where` (a URI) in `bucket` (its URI)."""
    found = _by_kind(error, where) or _by_answer(error, where, bucket)
    found.__cause__ = error
    return found


def _by_kind(error: Exception, where: str) -> FrazilError | None:
    """Translates by obstore's exception type, if that is specific enough."""
    if isinstance(error, AlreadyExistsError):
        return ConflictError(
            f"{where} already exists", cause=_cause(error), hint="read the existing object, then decide"
        )
    if isinstance(error, PreconditionError):
        return ConflictError(f"{where} has changed", cause=_cause(error), hint="read the existing object, then decide")
    if isinstance(error, NotSupportedError):
        return UnsupportedError(
            f"the server does not support this operation: {where}", cause=_cause(error), hint="use another store"
        )
    if isinstance(error, InvalidPathError):
        return UnsupportedError(
            f"{where} contains a key with an empty name, '.' or '..' in it",
            cause=_cause(error),
            hint="rename the object",
        )
    if isinstance(error, UnauthenticatedError):
        return _wrong_keys(error, where)
    if isinstance(error, FileNotFoundError) and _code(error) not in _MISSING_BUCKET:
        return NotFoundError(f"object not found: {where}", cause=_cause(error), hint="check the name; list its folder")
    return None


def _by_answer(error: Exception, where: str, bucket: str) -> FrazilError:
    status, code, cause = status_of(error), _code(error), _cause(error)
    if code in _MISSING_BUCKET:
        return NotFoundError(f"bucket not found: {bucket}", cause=cause, hint="check its name, or create it")
    if code in _WRONG_KEYS or status == 401:
        return _wrong_keys(error, where)
    if code in _BAD_NAME:
        return UsageError(f"the server rejects this name: {where}", cause=cause, hint="choose another bucket or key")
    if status == 404:
        return NotFoundError(f"nothing found at {where}", cause=cause, hint="check the name and the bucket")
    if status == 403:
        return NotAllowedError(f"not allowed: {where}", cause=cause, hint="check the policy of user and bucket")
    if status in (301, 307) or "incorrectly configured region" in str(error):
        return ConfigError(f"{bucket} is in another region", cause=cause, hint="set s3.region to the bucket's region")
    if status == 501:
        return UnsupportedError(
            f"the server does not support this operation: {where}", cause=cause, hint="use another store"
        )
    if code in _BUSY or status in (408, 429) or (status or 0) >= 500:
        return UnavailableError(f"the server is overloaded or failing: {where}", cause=cause, hint="try again later")
    if status is None and isinstance(error, BaseError) and "HTTP error" in str(error):
        return UnavailableError(
            f"no response from the server of {where}",
            cause=cause,
            hint="check s3.endpoint, that it is up, and the network",
        )
    return FrazilError(
        f"the store rejected the request for {where}", cause=cause, hint="check the cause, the endpoint and the names"
    )


def _wrong_keys(error: Exception, where: str) -> CredentialsError:
    keys = "s3.access_key and s3.secret_key, or s3.profile" if where.startswith("s3:") else "the cloud's own login"
    return CredentialsError(
        f"the credentials were rejected for {where}",
        cause=_cause(error),
        hint=f"check {keys}, and that temporary credentials have not expired",
    )


def _code(error: Exception) -> str:
    match = _CODE.search(str(error))
    return match[1] if match else ""


def _cause(error: Exception) -> str:
    """Returns a short reason: the server's message, or the network error."""
    text = str(error)
    if message := _MESSAGE.search(text):
        return f"{_code(error)}: {message[1]}"
    for mark, meaning in _TRANSPORT:
        if status_of(error) is None and mark in text:
            return meaning
    return first_line(error)
