"""Scans and reconciles with one log, one catalog and one Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from frazil.content.names import objects_name
from frazil.content.scan.bucket import Bucket
from frazil.content.scan.engine import SparkEngine
from frazil.content.scan.executors import TaskRunner, run_on_executors
from frazil.content.scan.folder import Folder
from frazil.content.scan.frames import load_inventory, load_listing, load_recorded
from frazil.content.scan.known_objects import KnownObjects, count_pending, count_rows, load_known_objects, unseen_keys
from frazil.content.scan.listing import ScanTarget
from frazil.content.scan.publish import LazyObservationPublisher
from frazil.content.scan.reconcile import PublishedCounts, ReconcilePlan, RepairTask, apply_plan, compare
from frazil.content.scan.scanner import Progress, ScanResult, run_scan
from frazil.content.scan.wait_visible import applied_offset, wait_until_visible
from frazil.content.scan.watch import publish_bucket_gone, publish_missing_files
from frazil.content.tables import ContentTables
from frazil.content.topic import ensure_events_topic
from frazil.errors import FrazilError, InterruptedByUser, NotFoundError, PartialError
from frazil.log.log import Log
from frazil.log.protocol import LogAccess
from frazil.settings import Settings
from frazil.tables.store import LazyStore, find_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LISTING = "listing"


@dataclass(frozen=True)
class ScanSession:
    """Scans and reconciles buckets and folders.

    Attributes:
        settings: the settings.
        access: the log.
        engine: provides Spark, and the log's address for executors.
        catalog: name of the catalog; None: the one of the settings.
    """

    settings: Settings
    access: LogAccess
    engine: SparkEngine
    catalog: str | None = None

    @property
    def spark(self) -> SparkSession:
        return self.engine.spark

    @property
    def address(self) -> str:
        """Where executors reach the log."""
        return self.engine.address

    def scan(
        self,
        place: ScanTarget,
        prefix: str = "",
        *,
        restart: bool = False,
        everything: bool = False,
        gone: bool | None = None,
        wait: bool = False,
        progress: Progress | None = None,
    ) -> ScanResult:
        """Publishes what the table does not know, or knows differently.

        If messages in the log are not applied yet, everything is published: such a message could otherwise be applied
        after this scan and undo what the table had right.

        Args:
            place: bucket or folder.
            prefix: only keys that begin with it.
            restart: start over although an interrupted scan could be resumed.
            everything: publish also what the table knows.
            gone: of a folder, publish also missing files; None: unless it is empty, as when a disk is not mounted.
            wait: whether `wait_until_visible` comes next; then nothing is published if this process could not do that.
            progress: called with the counts so far, and the number of shards left.

        Raises:
            FrazilError: it was interrupted; see `frazil.content.scan.scanner.run_scan`.
        """
        behind = self.waiting() > 0
        with LazyStore(self.settings, self.catalog) as store:
            tables = ContentTables.of(store.store(), self.settings)
            found = load_known_objects(tables, place.bucket, prefix)

            def publish_gone(publisher: LazyObservationPublisher) -> int:
                keys = unseen_keys(tables, place.bucket, prefix, found) if found.unseen else []
                return publish_missing_files(place, keys, publisher) if isinstance(place, Folder) else 0

            tells_gone = isinstance(place, Folder) and (gone or (gone is None and not place.is_empty()))
            return run_scan(
                self.settings,
                self.access,
                place,
                found,
                elsewhere=self._elsewhere(place, found),
                prefix=prefix,
                restart=restart,
                everything=everything,
                behind=behind,
                gone=publish_gone if tells_gone else None,
                progress=progress,
                before_publishing=self.require_writable if wait else None,
            )

    def _elsewhere(self, place: ScanTarget, found: KnownObjects) -> Callable[[], TaskRunner] | None:
        """Returns how to run on executors; None for folders that others may not see, or with rows to compare."""
        if place.is_local and (len(found) or not self.settings.model.spark.master.startswith("local")):
            return None
        return lambda: run_on_executors(self.spark, self.address, found)

    def require_writable(self) -> None:
        """Checks, before publishing and waiting, that this or another process can write to the table.

        Behind a broker another process may write, so that a failure is known only after the wait; see `waiting_for`.

        Raises:
            FrazilError: Spark cannot start; nothing was published.
        """
        if not isinstance(self.access, Log):
            return
        try:
            self.engine.require_ready()
        except FrazilError as error:
            raise error.adding("nothing was published") from error.__cause__

    @contextmanager
    def waiting_for(self, end: int) -> Iterator[None]:
        """Adds to errors in the block that the published messages are durable.

        Raises:
            PartialError: something failed; the messages are in the log, and not in the table.
            InterruptedByUser: by Ctrl-C, with the same addition.
        """
        topic = self.settings.model.content.topic
        text = f"all messages of topic '{topic}' below offset {end} are in the log and will be applied"
        details = {"topic": topic, "end": end, "durable": True}
        try:
            yield
        except (KeyboardInterrupt, InterruptedByUser):
            raise InterruptedByUser("interrupted").adding(text, **details) from None
        except FrazilError as error:
            failed = PartialError(
                "the published messages are durable, but could not be written to the table",
                cause=error.in_one_line,
                hint=f"{error.hint}; then frazil pipeline" if error.hint else "frazil pipeline",
            )
            raise failed.adding(text, **details) from error

    def wait_until_visible(self, end: int | None = None) -> None:
        """Waits until everything below an offset is in the table; by default all that is in the log now.

        Raises:
            PartialError: messages that this command published are in the log, and could not be written to the table.
        """
        if end is None:
            before = ensure_events_topic(self.access, self.settings).end
            wait_until_visible(self.settings, self.access, self.engine, before, catalog=self.catalog)
            return
        with self.waiting_for(end):
            wait_until_visible(self.settings, self.access, self.engine, end, catalog=self.catalog)

    def rows(self, bucket: str, prefix: str = "", *, latest: bool = False) -> int:
        """Counts the rows of a bucket, without tombstones."""
        with LazyStore(self.settings, self.catalog) as store:
            return count_rows(ContentTables.of(store.store(), self.settings), bucket, prefix, latest=latest)

    def pending(self, bucket: str, prefix: str = "") -> int:
        """Counts the rows of a bucket that wait for extraction."""
        with LazyStore(self.settings, self.catalog) as store:
            return count_pending(ContentTables.of(store.store(), self.settings), bucket, prefix)

    def waiting(self) -> int:
        """Counts the messages in the log that are not in the table yet."""
        try:
            end = self.access.info(self.settings.model.content.topic).end
        except NotFoundError:
            return 0
        with LazyStore(self.settings, self.catalog) as store:
            return max(0, end - applied_offset(store, self.settings))

    def plan(
        self, place: ScanTarget, prefix: str = "", *, against: str = LISTING, first: int = 10
    ) -> tuple[ReconcilePlan, datetime]:
        """Compares a target with the table. Returns the plan, and when the listing started.

        Args:
            place: bucket or folder.
            prefix: only keys that begin with it.
            against: `listing`, or a table of S3 Inventory or S3 Metadata.
            first: number of differences of each kind to name.

        Raises:
            NotFoundError: there is no such table.
            FrazilError: the target cannot be listed completely.
        """
        if against == LISTING:
            began = place.now()
            side = load_listing(self.spark, place, prefix)
        else:
            side, began = load_inventory(self.spark, self._foreign(against), place.bucket, prefix)
        # The table is read last, so that it has had time to receive what the listing shows.
        table = load_recorded(self.spark, self.objects_table(), place.bucket, prefix, has_versions=side.has_versions)
        events = not place.is_local
        skew_s = self.settings.model.content.skew_s if events else 0.0
        try:
            return compare(side, table, began, skew_s=skew_s, events=events, first=first), began
        finally:
            side.release()

    def repair(self, place: ScanTarget, plan: ReconcilePlan) -> PublishedCounts:
        """Looks up every difference again, publishes the answers, and waits until the table has them."""
        topic = ensure_events_topic(self.access, self.settings).name
        max_bytes = self.settings.model.log.max_message_size
        told = apply_plan(plan, RepairTask(place, self.address, topic, max_bytes, self.access.key))
        self.wait_until_visible(told.end)
        return told

    def record_bucket_gone(self, place: Bucket, prefix: str = "") -> PublishedCounts:
        """Publishes that a bucket was removed with all its objects, and waits until the table has it.

        Args:
            place: the bucket.
            prefix: only keys that begin with it.

        Raises:
            ConflictError: the bucket exists.
            FrazilError: the store does not confirm that the bucket does not exist.
        """
        self.require_writable()
        self.wait_until_visible()  # messages in the log may name more of its objects
        observed_at = place.confirm_missing()
        topic = ensure_events_topic(self.access, self.settings).name
        max_bytes = self.settings.model.log.max_message_size
        with (
            LazyStore(self.settings, self.catalog) as store,
            LazyObservationPublisher(self.access, topic, place.bucket, "reconcile", max_bytes) as publisher,
        ):
            tables = ContentTables.of(store.store(), self.settings)
            gone = publish_bucket_gone(tables, place.bucket, prefix, observed_at, publisher)
            end = publisher.end
        self.wait_until_visible(end)
        return PublishedCounts(gone=gone, end=end)

    def objects_table(self) -> str | None:
        """Returns the SQL name of the table of objects; None if it does not exist yet."""
        with LazyStore(self.settings, self.catalog) as store:
            table = find_table(store.store(), objects_name(self.settings))
        return None if table is None else _quoted(self.settings.catalog(self.catalog).name, *table.name())

    def _foreign(self, name: str) -> str:
        """Returns the SQL name of a table, which may start with the name of another catalog."""
        first, _, rest = name.partition(".")
        has_catalog = "." in rest and first in self.settings.catalog_names()
        catalog, name = (first, rest) if has_catalog else (self.catalog, name)
        with LazyStore(self.settings, catalog) as store:
            return _quoted(self.settings.catalog(catalog).name, *store.store().load(name).name())


def _quoted(*parts: str) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)
