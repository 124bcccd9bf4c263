"""Hands a log over from a pipeline that found no broker to a server that starts later.

A pipeline without a broker opens the log itself, and would keep it for its lifetime. It announces in the lock file that
it yields. A server that finds this writes a request beside it and waits; the pipeline finishes its batches, closes the
log, and continues as a client of the server.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.errors import LockedError
from frazil.log.owner import read_owner
from frazil.observe.logs import get_logger
from frazil.settings import Settings
from frazil.topics.connection import Note, connect, log_folder, open_log

if TYPE_CHECKING:
    from frazil.log import Log, LogAccess

log = get_logger(__name__)

#: The request of a server that waits for the log.
REQUEST = "HANDOVER"
_EVERY_S = 0.2
#: Limit of the seconds that a pipeline needs to close the log after its last batch.
_TO_CLOSE_S = 15.0
#: Limit of the seconds that a pipeline needs to start Spark after it has opened the log.
_TO_START_S = 180.0
#: Seconds that a server has to take the log once it is free; then the pipeline takes it back.
_TO_OPEN_S = 60.0


def take_log(settings: Settings) -> Log:
    """Opens the log for a server. Requests it from a pipeline that owns it and yields.

    Raises:
        LockedError: another process owns it and keeps it; the message names it.
    """
    folder = log_folder(settings)
    try:
        return open_log(settings)
    except LockedError:
        if not _yields(folder):
            raise
    log.info("a pipeline has the log and is asked to hand it over", log=str(folder))
    request = folder / REQUEST
    request.touch(mode=0o600)
    end = time.monotonic() + _TO_START_S + settings.model.pipeline.stop_s + _TO_CLOSE_S
    try:
        while True:
            try:
                return open_log(settings)
            except LockedError:
                if time.monotonic() > end:
                    raise
            time.sleep(_EVERY_S)
    finally:
        request.unlink(missing_ok=True)


def _yields(folder: Path) -> bool:
    owner = read_owner(folder)
    return owner is not None and owner.yields


def offer_handover(access: LogAccess) -> None:
    """Announces that this process hands the log over, if it has opened the log itself.

    A request that comes before `ending_for_server` waits for it.
    """
    from frazil.log import Log

    if isinstance(access, Log):
        access.offer_handover()


@contextmanager
def ending_for_server(access: LogAccess, stop: threading.Event) -> Iterator[threading.Event]:
    """Yields an event that is set with `stop`, and when a server requests a log that this process has opened."""
    from frazil.log import Log

    ending, over = threading.Event(), threading.Event()
    request = access.directory / REQUEST if isinstance(access, Log) else None
    offer_handover(access)

    def watch() -> None:
        while not over.wait(_EVERY_S):
            if stop.is_set() or (request is not None and request.exists()):
                ending.set()
                return

    thread = threading.Thread(target=watch, name="frazil-handover", daemon=True)
    thread.start()
    try:
        yield ending
    finally:
        over.set()
        thread.join()


def connect_again(settings: Settings, stop: threading.Event, *, note: Note) -> LogAccess | None:
    """Connects to the server that has requested the log; opens the log here again if that server never came.

    While another process has the log, it waits for as long as that takes: recovery of a large log may take minutes.

    Returns:
        None if `stop` was set before.

    Raises:
        LockedError: this process has not released the log yet.
    """
    folder = log_folder(settings)
    began = free_since = time.monotonic()
    noted = False
    while not stop.wait(_EVERY_S):
        owner = read_owner(folder)
        if owner is not None and "flight" in owner.addresses:
            return connect(settings, note=note)
        ours = owner is not None and (owner.pid, owner.host) == (os.getpid(), socket.gethostname())
        if owner is not None and not ours:
            free_since = time.monotonic()
            if not noted and free_since - began > _TO_OPEN_S:
                noted = True
                note(f"process {owner.pid} on {owner.host} has the log and does not serve it yet: the pipeline waits")
            continue
        late = time.monotonic() - free_since > _TO_OPEN_S
        if late:
            with suppress(OSError):
                (folder / REQUEST).unlink(missing_ok=True)
        if late or (owner is None and not (folder / REQUEST).exists()):
            try:
                return connect(settings, note=note)
            except LockedError:  # a server is just about to open it
                if ours:
                    raise
    return None
