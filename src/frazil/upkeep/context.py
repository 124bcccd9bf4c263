"""What every action of upkeep works on: settings, a catalog, and Spark."""

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

#: Returns the session; the first call may start a JVM.
Sessions = Callable[[], "SparkSession"]


@dataclass(frozen=True)
class UpkeepContext:
    """One catalog whose tables are maintained.

    Attributes:
        settings: all of them.
        catalog: the settings of that catalog.
        store: its tables, read by PyIceberg without a JVM.
        spark: returns the session for commits and rewrites.
        stop: set when the work should end soon: before the next commit, never during one.
        tasks: Spark tasks that may write files at once; None: as many as can run. Others that need a core wait until
            one of them ends, which takes seconds.
    """

    settings: Settings
    catalog: CatalogSettings
    store: TableStore
    spark: Sessions
    stop: threading.Event
    tasks: int | None = None

    def load(self, name: str) -> Table:
        """Loads a table by `namespace.table`, as it is now.

        Raises:
            NotFoundError: it does not exist.
        """
        return self.store.load(name)

    def storage_of(self, table: Table) -> TableStorage:
        """Returns the storage of a table's files."""
        return TableStorage(self.settings, self.catalog, table)

    def sql_name(self, table: Table) -> str:
        """Returns the table's name in Spark SQL, each part quoted."""
        parts = (self.catalog.name, *table.name())
        return ".".join("`" + part.replace("`", "``") + "`" for part in parts)
