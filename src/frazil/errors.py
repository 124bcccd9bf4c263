"""The tree of errors. Each names what failed, where, why, and what to try, and has an exit code and an HTTP status.

FrazilError                1   500
├── UsageError             2   400   the request itself is invalid
│   └── ConfigError        2   500   a setting is invalid or unknown
├── PartialError           3   207   only part of the work was done
├── NotFoundError         10   404
├── ConflictError         11   409   another writer committed first; retryable
│   └── LockedError       11   423   another process holds the lock; retryable
├── NotAllowedError       12   403
│   └── CredentialsError  12   401
├── IntegrityError        13   422   the data is damaged or does not match its checksum
├── DifferencesError      14   409   the actual state differs from the recorded one, and nothing was repaired
├── UnsupportedError       1   501   this catalog, engine or store does not support it
├── UnavailableError       1   503   a server or the network is unavailable; retryable
│   └── CircuitOpenError   1   503   too many failures in a row: requests are suspended for a while; retryable
├── SetupError             1   500   Java or a jar is missing on this machine
└── InterruptedByUser    130   499
"""

from __future__ import annotations

import errno
import re
from typing import Any, ClassVar, Self


class FrazilError(Exception):
    """Base of all errors that a user sees. Passwords inside URLs are masked, whoever wrote the text.

    Args:
        message: what happened, and where (a path, a URI, a table).
        cause: why, as far as it is known. Defaults to the text of ``__cause__`` when raised ``from`` another error.
        hint: the next thing to do, printed as ``Try: …``.
    """

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, cause: str | None = None, hint: str | None = None) -> None:
        self.message = mask_urls(message)
        super().__init__(self.message)
        self.hint = hint if hint is None else mask_urls(hint)
        self._cause = cause if cause is None else mask_urls(cause)
        #: Further fields of the error as JSON, such as how far it had come.
        self.details: dict[str, Any] = {}

    @property
    def cause(self) -> str | None:
        if self._cause is not None:
            return self._cause or None
        # Not of KeyboardInterrupt, which says nothing that an error of an interrupt does not.
        return first_line(self.__cause__) if isinstance(self.__cause__, Exception) else None

    @property
    def in_one_line(self) -> str:
        """Returns the message and the cause."""
        return self.message if self.cause is None else f"{self.message} ({self.cause})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark pickles errors on their way from executors to the driver; keyword arguments need help there.
        return _rebuild, (type(self), self.message, self.cause, self.hint)

    def adding(self, text: str, **details: Any) -> Self:
        """Returns the same error with the progress so far: in its message, and as further fields of its JSON."""
        self.message = mask_urls(f"{self.message}; {text}")
        self.args = (self.message,)
        self.details |= details
        return self

    def to_dict(self) -> dict[str, Any]:
        """Returns the error as JSON, with the same fields on the command line and over HTTP."""
        return {
            "error": type(self).__name__,
            "message": self.message,
            "cause": self.cause,
            "hint": self.hint,
            "exit_code": self.exit_code,
            "retryable": self.retryable,
            **self.details,
        }


def _rebuild(kind: type[FrazilError], message: str, cause: str | None, hint: str | None) -> FrazilError:
    return kind(message, cause=cause, hint=hint)


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or its type's name. Java and AWS append stack traces."""
    lines = str(error).strip().splitlines()
    return mask_urls(lines[0]) if lines else type(error).__name__


MASK = "********"
_SECRET_PARAMETER = re.compile(
    r"(?<=[?&;])([\w.-]*(?:passw(?:or)?d|pwd|secret|token|credential|signature|sig|key)=)[^&;#\s'\"]+", re.IGNORECASE
)
_SCHEME = re.compile(r"[^:/@]*://")


def mask_urls(text: str) -> str:
    """Masks passwords in a text: `user:password@host` and `?password=…`."""
    if "@" in text:
        text = re.sub(r"\S+", lambda word: _mask_password(word[0]), text)
    return _SECRET_PARAMETER.sub(rf"\1{MASK}", text)


def _mask_password(word: str) -> str:
    # A password may hold '@', ':' and '/' itself, so that all up to the last '@' counts as one.
    before, at, host = word.rpartition("@")
    scheme = _SCHEME.match(before)
    colon = before.find(":", scheme.end() if scheme else 0)
    return f"{before[: colon + 1]}{MASK}{at}{host}" if colon >= 0 else word


class UsageError(FrazilError):
    exit_code = 2
    http_status = 400


class ConfigError(UsageError):
    http_status = 500


class PartialError(FrazilError):
    exit_code = 3
    http_status = 207


class NotFoundError(FrazilError):
    exit_code = 10
    http_status = 404


class ConflictError(FrazilError):
    exit_code = 11
    http_status = 409
    retryable = True


class LockedError(ConflictError):
    http_status = 423


class NotAllowedError(FrazilError):
    exit_code = 12
    http_status = 403


class CredentialsError(NotAllowedError):
    http_status = 401


class IntegrityError(FrazilError):
    exit_code = 13
    http_status = 422


class DifferencesError(FrazilError):
    exit_code = 14
    http_status = 409


class UnsupportedError(FrazilError):
    http_status = 501


class UnavailableError(FrazilError):
    http_status = 503
    retryable = True


class CircuitOpenError(UnavailableError):
    pass


class SetupError(FrazilError):
    pass


class InterruptedByUser(FrazilError):  # noqa: N818 - the user did nothing wrong
    exit_code = 130
    http_status = 499


_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR)


def translate_os_error(error: OSError, path: str | None = None) -> FrazilError | None:
    """Returns the error for a full disk, missing rights or a file in place of a folder; None for any other OSError.

    Args:
        error: as the operating system raised it.
        path: what it is about, where it does not say so itself.
    """
    path = error.filename if isinstance(error.filename, str) else path
    if error.errno in _FULL:
        message = f"cannot write {path}: the disk is full" if path else "the disk is full"
        return UnavailableError(message, cause=str(error), hint="free some space, then run the command again")
    if path is None:
        return None
    if error.errno in _REFUSED:
        hint = "check owner, mode and mount of the folder, or choose another folder: --set home=DIR"
        return NotAllowedError(f"cannot access {path}", cause=error.strerror, hint=hint)
    if error.errno in _IN_THE_WAY:
        cause = f"{error.strerror}: a file exists where a folder is needed"
        return NotAllowedError(
            f"cannot use {path} as a folder", cause=cause, hint="choose another folder: --set home=DIR"
        )
    return None
