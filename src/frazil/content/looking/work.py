"""What scanning and reconciling work on: the log, the tables, and one Spark session for all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from frazil.content.looking.frames import inventory, listing, recorded
from frazil.content.looking.landing import reached, until_visible
from frazil.content.looking.listing import Place
from frazil.content.looking.reconcile import Plan, Repair, Told, apply, compare
from frazil.content.looking.scan import Scanned, on_executors, scan
from frazil.content.looking.state import Tally
from frazil.content.names import objects_name
from frazil.content.topic import ensure_events_topic
from frazil.errors import NotFoundError
from frazil.log.access import LogAccess
from frazil.settings import Settings
from frazil.topics.floor import LazyStore, find_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LISTING = "listing"


@dataclass(frozen=True)
class Work:
    """Scans and reconciles.

    Attributes:
        settings: the settings.
        access: the log.
        address: where executors reach it.
        spark: does the work.
        catalog: name of the catalog; None: the one of the settings.
    """

    settings: Settings
    access: LogAccess
    address: str
    spark: SparkSession
    catalog: str | None = None

    def scan(
        self,
        place: Place,
        prefix: str = "",
        *,
        restart: bool = False,
        progress: Callable[[Tally, int], None] | None = None,
    ) -> Scanned:
        """Tells the log of all that is there; see `frazil.content.looking.scan.scan`."""
        return scan(
            self.settings,
            self.access,
            self.address,
            place,
            on_executors(self.spark, place),
            prefix=prefix,
            restart=restart,
            tasks=self.spark.sparkContext.defaultParallelism,
            progress=progress,
        )

    def until_visible(self, end: int) -> None:
        """Returns when the table knows everything below an offset."""
        until_visible(self.settings, self.access, self.spark, self.address, end, catalog=self.catalog)

    def rows(self, bucket: str, prefix: str = "", *, latest: bool = False) -> int:
        """How many rows of a bucket the table has, tombstones not counted."""
        found = recorded(self.spark, self._objects(), bucket, prefix, has_versions=True)
        return int((found.where("is_latest") if latest else found).count())

    def waiting(self) -> int:
        """Messages that are in the log, and not in the table yet."""
        try:
            end = self.access.info(self.settings.model.content.topic).end
        except NotFoundError:
            return 0
        with LazyStore(self.settings, self.catalog) as store:
            return max(0, end - reached(store, self.settings))

    def plan(self, place: Place, prefix: str = "", *, against: str = LISTING, first: int = 10) -> tuple[Plan, datetime]:
        """What differs between a place and the table; and when the look at the place began.

        Args:
            place: bucket or folder.
            prefix: only keys that begin with it.
            against: `listing`, or a table of S3 Inventory or S3 Metadata.
            first: so many differences of each kind are named.

        Raises:
            NotFoundError: there is no such table.
            FrazilError: the place cannot be listed to its end.
        """
        if against == LISTING:
            began = place.now()
            side = listing(self.spark, place, prefix)
        else:
            side, began = inventory(self.spark, self._foreign(against), place.bucket, prefix)
        # The table is read last: what the listing has seen, it has had time to hear of.
        table = recorded(self.spark, self._objects(), place.bucket, prefix, has_versions=side.has_versions)
        events = not place.is_local
        skew_s = self.settings.model.content.skew_s if events else 0.0
        try:
            return compare(side, table, began, skew_s=skew_s, events=events, first=first), began
        finally:
            side.release()

    def repair(self, place: Place, plan: Plan) -> Told:
        """Asks the place again about all that differs, tells the log, and returns when the table knows it."""
        topic = ensure_events_topic(self.access, self.settings).name
        told = apply(plan, Repair(place, self.address, topic, self.settings.model.log.max_message_size))
        self.until_visible(told.end)
        return told

    def _objects(self) -> str | None:
        with LazyStore(self.settings, self.catalog) as store:
            table = find_table(store.store(), objects_name(self.settings))
        return None if table is None else _quoted(self.settings.catalog(self.catalog).name, *table.name())

    def _foreign(self, name: str) -> str:
        """A table of the catalog, or of another one whose name comes first, as SQL names it."""
        first, _, rest = name.partition(".")
        has_catalog = "." in rest and first in self.settings.catalog_names()
        catalog, name = (first, rest) if has_catalog else (self.catalog, name)
        with LazyStore(self.settings, catalog) as store:
            return _quoted(self.settings.catalog(catalog).name, *store.store().load(name).name())


def _quoted(*parts: str) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)
