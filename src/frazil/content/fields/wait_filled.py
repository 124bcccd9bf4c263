"""Waits until custom columns are backfilled. If no pipeline does it, does it in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from frazil.content.fields.overview import being_filled
from frazil.content.names import objects_name
from frazil.content.scan.engine import SparkEngine
from frazil.content.scan.wait_visible import content_pipeline
from frazil.errors import InterruptedByUser
from frazil.log.protocol import LogAccess
from frazil.settings import Settings
from frazil.tables.store import LazyStore, find_table

#: Seconds without a commit after which no pipeline seems to be running.
PATIENCE_S = 60.0
_LOOK_S = 0.5


def wait_until_filled(
    settings: Settings,
    access: LogAccess,
    engine: SparkEngine,
    names: Collection[str],
    *,
    catalog: str | None = None,
    stop: threading.Event | None = None,
    patience_s: float = PATIENCE_S,
) -> None:
    """Waits until none of these fields is being backfilled.

    Args:
        settings: the settings.
        access: the log.
        engine: computes them if no pipeline does.
        names: of the fields.
        catalog: name of the catalog; None: the one of the settings.
        stop: ends it.
        patience_s: seconds without a commit after which no pipeline seems to be running.

    Raises:
        InterruptedByUser: `stop` was set.
        FrazilError: they could not be computed.
    """
    stop = stop or threading.Event()
    with LazyStore(settings, catalog) as store:

        def left() -> tuple[bool, str]:
            table = find_table(store.store(), objects_name(settings))
            if table is None:
                return False, ""
            return bool(set(names) & set(being_filled(table))), table.metadata_location

        if _others_do_it(left, stop, patience_s):
            return
    with content_pipeline(settings, access, engine.spark, engine.address, catalog) as pipeline:
        pipeline.drain(stop=stop)


def _others_do_it(left: Callable[[], tuple[bool, str]], stop: threading.Event, patience_s: float) -> bool:
    is_left, at = left()
    moved = time.monotonic()
    while is_left:
        if stop.wait(_LOOK_S):
            raise InterruptedByUser("interrupted; the pipeline goes on computing")
        is_left, now = left()
        if now != at:
            at, moved = now, time.monotonic()
        elif time.monotonic() - moved > patience_s:
            return False
    return True
