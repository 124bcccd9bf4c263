"""The owner of a log: one process, which holds a lock file that contains its name and addresses."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import random
import secrets
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from frazil.errors import LockedError, NotAllowedError, UnavailableError, first_line, translate_os_error

LOCK = "LOCK"
_MIN_TRIES = 80
#: Seconds to keep trying while there is no owner: readers of the lock file hold a shared lock while they inspect it.
_CONTENTION_S = 10.0


@dataclass(frozen=True)
class OwnerInfo:
    """The process that owns a log, according to its lock file."""

    pid: int
    host: str
    started: str
    addresses: dict[str, str] = field(default_factory=dict)
    word: str = ""
    """Random and unique to this owner, whatever its pid and host: a reader recognises the owner's files by it."""
    yields: bool = False
    """Whether it hands the log over to a server on request."""


class Owner:
    """Owns a log's folder. The operating system releases the lock when the process ends, however it ends."""

    def __init__(self, file: int, info: dict[str, Any]) -> None:
        self._file, self._info = file, info

    @classmethod
    def take(cls, directory: Path) -> Self:
        try:
            file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            known = translate_os_error(error)
            if not isinstance(known, NotAllowedError):
                raise known or error from error
            hint = f"chmod u+w {directory}, or choose another folder: --set log.directory=DIR"
            raise NotAllowedError(f"the log at {directory} cannot be written", hint=hint) from error
        if not _lock(file, directory):
            os.close(file)
            raise _make_locked_error(directory)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        info = {"pid": os.getpid(), "host": socket.gethostname(), "started": now, "word": secrets.token_hex(16)}
        owner = cls(file, info)
        try:
            owner._write()
        except OSError as error:
            os.close(file)
            raise UnavailableError(
                f"the log at {directory} cannot be opened", cause=first_line(error), hint="free some space on that disk"
            ) from error
        return owner

    @property
    def word(self) -> str:
        return str(self._info["word"])

    def announce(self, addresses: dict[str, str]) -> None:
        self._info["addresses"] = addresses
        self._write()

    def offer(self) -> None:
        """Announces that the log is handed over to a server on request."""
        self._info["yields"] = True
        self._write()

    def _write(self) -> None:
        content = json.dumps(self._info).encode()
        os.pwrite(self._file, content, 0)
        os.ftruncate(self._file, len(content))

    def release(self) -> None:
        if self._file >= 0:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = -1


def _lock(file: int, directory: Path) -> bool:
    """Takes the lock in many short tries, because readers of the lock file also take it for a moment."""
    tries, end = 0, time.monotonic() + _CONTENTION_S
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        tries += 1
        if tries >= _MIN_TRIES and (time.monotonic() > end or read_owner(directory) is not None):
            return False
        time.sleep(random.uniform(0.0005, 0.004))  # noqa: S311 - out of step with others, guards nothing


def read_owner(directory: Path) -> OwnerInfo | None:
    """Returns the process that owns a log now, or None."""
    try:
        file = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _parse(os.pread(file, 65536, 0))
        return None
    finally:
        os.close(file)


def _parse(content: bytes) -> OwnerInfo:
    try:
        known: dict[str, Any] = json.loads(content)
        return OwnerInfo(**{name: known[name] for name in OwnerInfo.__dataclass_fields__ if name in known})
    except (ValueError, TypeError):  # it is being written just now
        return OwnerInfo(0, "unknown", "unknown")


def _make_locked_error(directory: Path) -> LockedError:
    owner = read_owner(directory)
    if owner is None:
        return LockedError(f"the log at {directory} was open in another process until now", hint="try again")
    served = owner.addresses.get("flight")
    return LockedError(
        f"the log at {directory} is open in process {owner.pid} on {owner.host}, since {owner.started}",
        cause="only one process can have a log open",
        hint=f"go through its broker: --set log.broker={served}" if served else f"stop process {owner.pid}, or wait",
    )
