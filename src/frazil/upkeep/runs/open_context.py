"""Opens a catalog for upkeep on request; the first step that needs Spark starts it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from frazil.catalogs import open_catalog
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.tables.hadoop import provide_hadoop
from frazil.upkeep.context import Sessions, UpkeepContext
from frazil.upkeep.jobs import Jobs
from frazil.upkeep.policy import check_policies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def open_context(
    settings: Settings,
    catalog: str | None = None,
    stop: threading.Event | None = None,
    *,
    spark: Sessions | None = None,
) -> Iterator[UpkeepContext]:
    """Opens an upkeep context. `stop` also cancels the Spark jobs that run for it.

    Args:
        settings: all of them.
        catalog: name of the catalog; by default the one of the settings.
        stop: set to end the work early.
        spark: returns a session that the caller closes; None: a session that ends with the block.

    Raises:
        ConfigError: a policy in the settings contradicts itself.
    """
    check_policies(settings)
    chosen, network = settings.catalog(catalog), settings.model.network
    asked = stop or threading.Event()
    over = threading.Event()
    with ExitStack() as opened:
        store = opened.enter_context(TableStore(open_catalog(chosen, network), chosen, network))

        def start() -> SparkSession:
            from frazil.spark import spark_session

            return opened.enter_context(spark_session(settings))

        jobs = Jobs(spark or start)
        opened.enter_context(provide_hadoop(jobs))
        if spark is not None:
            opened.callback(jobs.leave)

        def cancel() -> None:
            while not over.is_set():
                if asked.wait(0.2):
                    jobs.cancel()
                    return

        watch = threading.Thread(target=cancel, name="frazil-upkeep-stop", daemon=True)
        watch.start()
        opened.callback(watch.join)
        opened.callback(over.set)
        yield UpkeepContext(settings, chosen, store, jobs, asked)
