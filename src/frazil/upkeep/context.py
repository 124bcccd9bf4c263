"""What every action of upkeep works on: the settings, a catalog, and Spark where one is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frazil.settings import CatalogSettings, Settings
from frazil.tables import TableStore
from frazil.tables.metadata.locations import TableStorage

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

#: Gives the session; the first call may start a JVM.
Sessions = Callable[[], "SparkSession"]


@dataclass(frozen=True)
class UpkeepContext:
    """One catalog whose tables are cared for.

    Attributes:
        settings: all of them.
        catalog: of that catalog.
        store: its tables, read by PyIceberg; no JVM.
        spark: commits and rewrites go through it.
        stop: set when the work should end soon: before the next commit, not in the middle of one.
        tasks: of Spark that may write files at once; None: as many as can run. Who needs a core meanwhile would wait
            until one of them has ended, which takes seconds.
    """

    settings: Settings
    catalog: CatalogSettings
    store: TableStore
    spark: Sessions
    stop: threading.Event
    tasks: int | None = None

    def load(self, name: str) -> Table:
        """A table by `namespace.table`, as it is now.

        Raises:
            NotFoundError: there is none.
        """
        return self.store.load(name)

    def storage_of(self, table: Table) -> TableStorage:
        """The storage that the files of a table lie in."""
        return TableStorage(self.settings, self.catalog, table)

    def sql_name(self, table: Table) -> str:
        """The table as Spark SQL names it, each part quoted."""
        parts = (self.catalog.name, *table.name())
        return ".".join("`" + part.replace("`", "``") + "`" for part in parts)
