"""An Iceberg table of a lake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from frazil.lake.connection import Connection
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import pins as table_pins
from frazil.upkeep.expiry.pins import Held, Pin
from frazil.upkeep.plans.health import Health, examine
from frazil.upkeep.runs.expire_table import ExpiryReport, expire_table
from frazil.upkeep.runs.history import History
from frazil.upkeep.runs.open_context import open_context
from frazil.upkeep.runs.rewrite_table import BUDGET, RewriteReport, compaction_options, rewrite_table

if TYPE_CHECKING:
    import pyiceberg.table


class Table:
    """A table, whoever writes it: read it with PyIceberg, and maintain it. Get it by `lake.table(name)`.

    Attributes:
        name: `namespace.table`.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self.name = name
        self._connection = connection

    def __repr__(self) -> str:
        return f"<frazil.Table {self.name}>"

    @property
    def iceberg(self) -> pyiceberg.table.Table:
        """The table as it is now, as PyIceberg has it. Each access loads it."""
        self._connection.require_open()
        return self._connection.store.store().load(self.name)

    def health(self) -> Health:
        """Returns the condition of the table, and what its policy will do next. Reads metadata only, without Spark."""
        with self._care() as care:
            history = History(care.store, care.settings.model.upkeep.history)
            return examine(care, self.name, last=history.last(self.name))

    def compact(
        self,
        *,
        target_bytes: int | None = None,
        min_files: int | None = None,
        strategy: str | None = None,
        sort_by: Sequence[str] | None = None,
        where: str | None = None,
        budget_bytes: int = BUDGET,
    ) -> RewriteReport:
        """Merges small files and files with many deleted rows, commit by commit, on Spark. Readers are not disturbed.

        What is not given is as the table's policy says.

        Args:
            target_bytes: size of a new file.
            min_files: files of a partition that are worth it.
            strategy: "auto" (sorted as the table is), "binpack", "sort" or "zorder".
            sort_by: columns for "sort" and "zorder".
            where: only partitions for which this condition holds, as in SQL.
            budget_bytes: bytes that one commit takes in.

        Raises:
            UsageError: an option does not fit the table.
            ConflictError: other writers were faster. Commits before that stay.
        """
        with self._care() as care:
            table = care.load(self.name)
            options = compaction_options(
                care,
                table,
                target=target_bytes,
                min_files=min_files,
                strategy=strategy,
                sort_by=sort_by,
                where=where,
                budget=budget_bytes,
            )
            report = rewrite_table(care, table, "compact", options)
        report.raise_failures()
        return report

    def expire(
        self,
        *,
        older_than: timedelta | None = None,
        keep: int | None = None,
        snapshots: Sequence[int] = (),
        grace: timedelta | None = None,
        dry_run: bool = False,
    ) -> ExpiryReport:
        """Removes old snapshots from the table's history, and deletes files whose grace is over.

        Without a limit, the table's policy decides. What a branch, tag or pin holds stays. Commits through Spark.

        Args:
            older_than: expire snapshots that are older.
            keep: keep at most so many.
            snapshots: instead, expire these, whatever their age.
            grace: how long files stay after their snapshot; by default as the policy says.
            dry_run: only report what would be done.

        Raises:
            ConflictError: other writers were faster, or pins hold all that the limits choose.
            PartialError: some files could not be deleted.
            NotAllowedError: another table has its files there, or refers to files that would go.
        """
        with self._care() as care:
            report = expire_table(
                care,
                self.name,
                max_age_s=None if older_than is None else older_than.total_seconds(),
                max_snapshots=keep,
                snapshots=snapshots,
                grace_s=None if grace is None else grace.total_seconds(),
                dry_run=dry_run,
            )
        report.raise_failures()
        return report

    # -- pins --------------------------------------------------------------------------------------------------------

    @contextmanager
    def pinned(self, purpose: str, *, lease: timedelta = timedelta(minutes=10)) -> Iterator[Held]:
        """Keeps the current snapshot from being expired, for a block; the lease is renewed until it ends.

        Args:
            purpose: lower-case letters, digits and "-", such as "backup".
            lease: how long the pin outlives a process that dies.
        """
        with (
            self._care() as care,
            table_pins.pinned(care, care.load(self.name), purpose, lease.total_seconds()) as held,
        ):
            yield held

    def pin(self, purpose: str, *, lease: timedelta, snapshot: int | None = None) -> Pin:
        """Keeps a snapshot from being expired until the lease is over; by default the current one."""
        with self._care() as care:
            return table_pins.pin(care, care.load(self.name), purpose, lease.total_seconds(), snapshot)

    def renew(self, pin: Pin, *, lease: timedelta) -> Pin:
        """Extends a pin to end so long from now. Raises ConflictError if it is gone."""
        with self._care() as care:
            return table_pins.renew(care, pin, lease.total_seconds())

    def release(self, pin: Pin) -> None:
        """Removes a pin."""
        with self._care() as care:
            table_pins.release(care, pin)

    def pins(self) -> list[Pin]:
        """Returns the pins of the table, also those whose lease is over and that the next expiry removes."""
        return table_pins.pins(self.iceberg)

    def _care(self) -> AbstractContextManager[UpkeepContext]:
        connection = self._connection
        connection.require_open()
        return open_context(connection.settings, connection.catalog, spark=lambda: connection.spark)
