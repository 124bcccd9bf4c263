"""Publishes events from files and standard input to the log."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from frazil.content.intake.json_documents import Piece, Splitter
from frazil.content.intake.messages import Taken, headers_of, store
from frazil.errors import InterruptedByUser, NotAllowedError, NotFoundError, UnavailableError, UsageError
from frazil.log.protocol import LogAccess

#: The name of standard input.
STDIN = "-"

_READ_BYTES = 1024 * 1024
#: Seconds between checks for a stop.
_LOOK_UP_S = 0.2
#: Maximum size of a batch.
_BATCH_MESSAGES = 10_000
_BATCH_BYTES = 1024 * 1024


def check_files(names: Iterable[str]) -> None:
    """Checks all files before the first is read, so that a misspelt name changes nothing.

    Raises:
        NotFoundError: there is no such file.
        NotAllowedError: it may not be read.
        UsageError: it is a folder.
    """
    for name in names:
        if name == STDIN:
            continue
        try:
            kind = Path(name).stat().st_mode
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no file {name}", cause="", hint="a file that exists") from error
        except OSError as error:
            raise NotAllowedError(f"{name} cannot be read", cause=error.strerror, hint="a file you may read") from error
        if stat.S_ISDIR(kind):
            raise UsageError(
                f"{name} is a folder", hint=f"its files; to know what is in it: frazil content scan {name}"
            )
        if not os.access(name, os.R_OK):
            raise NotAllowedError(f"{name} cannot be read", hint="a file that you may read")


class FileIntake:
    """Publishes files to a topic, and tracks the progress.

    Args:
        access: the log.
        topic: there already.
        limit: bytes of the largest message that the log takes.
        dialect: fixes the dialect of all messages; by default each is recognised.
    """

    def __init__(self, access: LogAccess, topic: str, limit: int, dialect: str | None = None) -> None:
        self._access, self._limit = access, limit
        self._headers = headers_of("file", dialect)
        self.taken = Taken(topic)
        self.not_json = 0
        self.too_large = 0
        self.under_way = 0
        """Messages of which it is not known whether they are in the log."""

    def to_dict(self) -> dict[str, Any]:
        return self.taken.to_dict() | {"not_json": self.not_json, "too_large": self.too_large}

    def take(self, name: str, stop: threading.Event) -> None:
        """Publishes all events of a file, or of standard input as they arrive.

        Raises:
            InterruptedByUser: `stop` was set before the end.
            UnavailableError: it cannot be read any further, or the log takes no more.
        """
        splitter = Splitter(self._limit)
        try:
            for chunk in _chunks(name, stop):
                self._store_all(splitter.feed(chunk))
            self._store_all(splitter.finish())
        finally:
            self.too_large += splitter.too_large

    def _store_all(self, pieces: Iterable[Piece]) -> None:
        """Publishes events that arrived together as one batch, without waiting for more."""
        payloads: list[bytes] = []
        size = 0
        for piece in pieces:
            self.not_json += not piece.is_json
            payloads.append(piece.payload)
            size += len(piece.payload)
            if len(payloads) >= _BATCH_MESSAGES or size >= _BATCH_BYTES:
                self._store(payloads)
                payloads, size = [], 0
        if payloads:
            self._store(payloads)

    def _store(self, payloads: list[bytes]) -> None:
        self.under_way = len(payloads)
        ack = store(self._access, self.taken.topic, payloads, self._headers)
        self.under_way = 0
        self.taken.add(ack, sum(map(len, payloads)))


def _chunks(name: str, stop: threading.Event) -> Iterator[bytes]:
    try:
        descriptor = sys.stdin.fileno() if name == STDIN else os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while chunk := _read(descriptor, stop):
                yield chunk
        finally:
            if name != STDIN:
                os.close(descriptor)
    except OSError as error:
        raise UnavailableError(f"{name} cannot be read any further", cause=error.strerror) from error


def _read(descriptor: int, stop: threading.Event) -> bytes:
    """Waits for input or `stop`, because a pipe may stay silent forever."""
    while not stop.is_set():
        if select.select([descriptor], [], [], _LOOK_UP_S)[0]:
            return os.read(descriptor, _READ_BYTES)
    raise InterruptedByUser("interrupted")
