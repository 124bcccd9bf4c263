"""Connects to the log: to a broker if one runs, otherwise to the log's folder, opened in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.errors import LockedError, UsageError
from frazil.observe.logs import get_logger
from frazil.settings import Settings
from frazil.topics.committed_offsets import committed_offsets

if TYPE_CHECKING:
    from frazil.log import Log, LogAccess

Note = Callable[[str], None]

log = get_logger(__name__)


def silent(_text: str) -> None:
    """Ignores notes, for callers that report the log's location themselves."""


def _log_note(text: str) -> None:
    log.info(text)


def log_folder(settings: Settings) -> Path:
    return settings.model.log.directory or settings.model.home / "log"


def has_log(settings: Settings) -> bool:
    """Returns whether there can be messages: a broker is configured, or the log's folder has topics."""
    return settings.model.log.broker is not None or (log_folder(settings) / "topics").is_dir()


def connect_patiently(
    settings: Settings, *, note: Note = _log_note, catalog: str | None = None, patience_s: float = 2.0
) -> LogAccess:
    """Connects as `connect` does, but waits for a process that has the log open for a moment, as a command does."""
    end = time.monotonic() + patience_s
    while True:
        try:
            return connect(settings, note=note, catalog=catalog)
        except LockedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def connect(settings: Settings, *, note: Note = _log_note, catalog: str | None = None) -> LogAccess:
    """Connects to the log: to `log.broker`, else the broker that owns the log's folder, else the folder itself.

    Args:
        settings: the settings.
        note: called with a text if no broker runs and the log is opened here; by default the text is logged.
        catalog: name of the catalog with the topics' tables, which contain assigned offsets.

    Raises:
        UsageError: there is a broker, and the catalog is another than that of the settings.
        LockedError: a process without a broker has the folder open; the message names it.
        UnavailableError: the broker does not answer.
    """
    from frazil.log.owner import read_owner

    address = settings.model.log.broker
    if address is None:
        owner = read_owner(log_folder(settings))
        address = owner.addresses.get("flight") if owner is not None else None
    if address is not None:
        from frazil.log.remote.client import Client

        if catalog not in (None, settings.model.catalog.name):
            raise UsageError(
                f"the log is behind the broker at {address}, which asks the catalog of its settings which offsets are "
                f"taken, and not '{catalog}'",
                cause="a topic's table is where the broker looks for it",
                hint="without --catalog; or give both processes that catalog by settings (catalog.uri, …)",
            )
        return Client(address, key=_key(settings))
    opened = open_log(settings, catalog=catalog)
    note(f"no broker runs: the {opened.where} is opened by this process")
    return opened


def _key(settings: Settings) -> str | None:
    from frazil.log.trust import get_configured_key, read_key

    return get_configured_key(settings.model.log) or read_key(log_folder(settings))


def open_log(settings: Settings, *, catalog: str | None = None) -> Log:
    """Opens the log's folder in this process. It queries the topics' tables before it assigns an offset."""
    from frazil.log import Log

    return Log.open(log_folder(settings), settings.model.log, floor=committed_offsets(settings, catalog))


@contextmanager
def flight_address(access: LogAccess, *, note: Note = silent) -> Iterator[str]:
    """Yields the address at which Spark's executors reach this log: its broker, or one in this process."""
    from frazil.log.log import Log
    from frazil.log.remote.client import Client

    if isinstance(access, Client):
        yield access.address
        return
    from frazil.log.remote.broker import Broker

    assert isinstance(access, Log), "a log is here, or behind a broker"
    with Broker(access) as broker:
        access.announce(flight=broker.address)
        note(f"the {access.where} is served at {broker.address} while this process runs")
        try:
            yield broker.address
        finally:
            access.announce()
