"""Backups of the tables of a lake."""

from __future__ import annotations

import builtins
from contextlib import AbstractContextManager
from dataclasses import replace as change
from datetime import datetime
from typing import Literal

from frazil.backup.contents import TableContents, TableDifference, describe_table, diff_backups
from frazil.backup.create import create_backup
from frazil.backup.format import BackupRecord
from frazil.backup.location import open_repository, repository_uri
from frazil.backup.policies import PolicyRun, run_policies
from frazil.backup.prune import PrunePlan, PruneReport, plan_prune, run_prune
from frazil.backup.repository import Repository
from frazil.backup.restore import RestoreReport, run_restore
from frazil.backup.restore_plan import RestorePlan, RestoreTarget, plan_restore
from frazil.backup.retention import RetentionPolicy
from frazil.backup.rollback import RollbackReport, rollback_restore
from frazil.backup.selection import (
    choose_target_name,
    find_record,
    find_tables,
    has_table,
    list_tables_of,
)
from frazil.backup.source import load_source
from frazil.backup.verify import VerifyReport, verify_repository
from frazil.errors import UsageError
from frazil.lake.connection import Connection
from frazil.tables.relocation.engine import EngineChoice, open_engine
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.runs.open_context import open_context


class Backups:
    """Backups in the repository that the setting `backup.bucket` names. Get it by `lake.backup`.

    `"latest"` names the newest backup.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __repr__(self) -> str:
        return f"<frazil.Backups {repository_uri(self._connection.settings)}>"

    # -- make and look at ----------------------------------------------------------------------------------------------

    def create(
        self,
        *tables: str,
        namespace: str | None = None,
        name: str | None = None,
        ref: str | None = None,
        data: Literal["copy", "reference"] = "copy",
        engine: EngineChoice = "auto",
    ) -> BackupRecord:
        """Backs up tables with their history. Files that the repository has are not copied again.

        Args:
            tables: as `namespace.table`; none: all of the catalog, or of `namespace`.
            namespace: all tables of this namespace.
            name: of the backup; by default the time.
            ref: only this branch or tag, with its history.
            data: "reference" copies metadata only; the backup needs the data files where they are.
            engine: what copies: "local", "spark" or "auto".

        Raises:
            NotFoundError: there is no such table, or one of its files is missing. There is no backup then.
            ConflictError: a backup of this name exists.
        """
        if tables and namespace is not None:
            raise UsageError("tables and a namespace are given", hint="one of the two")
        with self._care() as care:
            # Before a repository is made: where a name is wrong, nothing changes.
            chosen = [load_source(care, table).name for table in tables] or list_tables_of(care.store, namespace)
            repository = self._repository(create=True)
            return create_backup(care, repository, chosen, name=name, ref=ref, data=data, engine=engine)

    def list(self, table: str | None = None) -> builtins.list[BackupRecord]:
        """Returns the backups, the oldest first; with `table` those that have it. Damaged ones are left out."""
        records = [one for one in self._repository().list_records() if isinstance(one, BackupRecord)]
        return records if table is None else [one for one in records if has_table(one, table)]

    def show(self, backup: str = "latest", table: str | None = None) -> builtins.list[TableContents]:
        """Returns the contents of a backup, table by table: columns, snapshots, properties."""
        repository = self._repository()
        return [describe_table(repository, one) for one in find_tables(find_record(repository, backup), table)]

    def diff(self, before: str, after: str) -> builtins.list[TableDifference]:
        """Returns what only one of two backups has, table by table."""
        repository = self._repository()
        return diff_backups(repository, find_record(repository, before), find_record(repository, after))

    # -- restore -------------------------------------------------------------------------------------------------------

    def plan_restore(
        self,
        backup: str = "latest",
        *,
        table: str | None = None,
        to: str | None = None,
        location: str | None = None,
        catalog: str | None = None,
        snapshot: int | None = None,
        as_of: datetime | None = None,
        if_not_exists: bool = False,
        replace: bool = False,
        current_only: bool = False,
        allow_erased: bool = False,
    ) -> RestorePlan:
        """Returns what `restore` would do with the same arguments. Changes nothing."""
        with self._care(catalog) as care:
            return _plan(
                care, self._repository(), backup, table, to,
                RestoreTarget(
                    "", location, snapshot, as_of, if_not_exists=if_not_exists, replace=replace,
                    current_only=current_only, allow_erased=allow_erased,
                ),
            )  # fmt: skip

    def restore(
        self,
        backup: str = "latest",
        *,
        table: str | None = None,
        to: str | None = None,
        location: str | None = None,
        catalog: str | None = None,
        snapshot: int | None = None,
        as_of: datetime | None = None,
        if_not_exists: bool = False,
        replace: bool = False,
        current_only: bool = False,
        allow_erased: bool = False,
        engine: EngineChoice = "auto",
    ) -> RestoreReport:
        """Restores one table. It appears in one step when everything is there, or not at all.

        Args:
            backup: the backup's name.
            table: of the backup, where that has several.
            to: name of the restored table; by default the original's.
            location: its folder; by default as the catalog says.
            catalog: name of another catalog of the settings.
            snapshot: with this snapshot as the current one, and none after it.
            as_of: the same by time.
            if_not_exists: leave a table that exists alone.
            replace: replace a table that exists; `rollback` undoes it.
            current_only: without history, branches and tags.
            allow_erased: without files whose content was erased.
            engine: what copies: "local", "spark" or "auto".

        Raises:
            ConflictError: the target exists.
            NotFoundError: there is no such backup, table or snapshot.
            NotAllowedError: the location is in the way of another table.
            IntegrityError: the backup is damaged. Nothing was published.
        """
        repository, settings = self._repository(), self._connection.settings
        with self._care(catalog) as care:
            plan = _plan(
                care, repository, backup, table, to,
                RestoreTarget(
                    "", location, snapshot, as_of, if_not_exists=if_not_exists, replace=replace,
                    current_only=current_only, allow_erased=allow_erased,
                ),
            )  # fmt: skip
            limit = settings.model.backup.concurrency
            with open_engine(engine, settings, size_hint=plan.bytes, concurrency=limit, spark=care.spark) as opened:
                return run_restore(care, repository, plan, opened)

    def rollback(self, table: str, *, discard_newer: bool = False, dry_run: bool = False) -> RollbackReport:
        """Undoes a restore with `replace`: the table is what it was before.

        Args:
            table: its name.
            discard_newer: also where there were commits since, which are lost.
            dry_run: only report what would be.

        Raises:
            NotFoundError: the table did not replace another one.
            ConflictError: there were commits since the restore.
        """
        with self._care() as care:
            return rollback_restore(care, table, discard_newer=discard_newer, dry_run=dry_run)

    # -- verify and prune ----------------------------------------------------------------------------------------------

    def verify(
        self,
        *backups: str,
        level: Literal["listing", "checksums", "sample"] = "listing",
        sample: tuple[int, int] = (1, 1),
    ) -> VerifyReport:
        """Verifies backups, by default all: `report.is_sound`, and `findings` with what is damaged or missing.

        Args:
            backups: names.
            level: "listing": every object is there, with its size; "checksums": every byte is read; "sample": a part.
            sample: n and t: read the nth of t parts.
        """
        repository = self._repository()
        names = [find_record(repository, name).name for name in backups] or None
        if level == "listing" and sample != (1, 1):
            level = "sample"
        return verify_repository(repository, names=names, level=level, sample=sample)

    def plan_prune(self, keep: RetentionPolicy | None = None) -> PrunePlan:
        """Returns what `prune` would do with the same rules. Changes nothing."""
        return plan_prune(self._repository(), keep, prune_wait_s=self._connection.settings.model.backup.prune_wait_s)

    def prune(self, keep: RetentionPolicy | None = None) -> PruneReport:
        """Drops backups by rules, and deletes files that no backup has needed for the time `backup.prune_wait_s`.

        Args:
            keep: for each table, a backup stays if any rule keeps it; None: no backup is dropped.

        Raises:
            IntegrityError: a record is damaged, so that it is not known what it needs. Nothing was deleted.
        """
        return run_prune(self._repository(), keep, prune_wait_s=self._connection.settings.model.backup.prune_wait_s)

    def run(self, *policies: str, force: bool = False, dry_run: bool = False) -> builtins.list[PolicyRun]:
        """Makes the backups that the policies of the settings say are due, and prunes what they drop.

        Args:
            policies: only these.
            force: due or not.
            dry_run: only say what is due.
        """
        connection = self._connection
        connection.require_open()
        return run_policies(connection.settings, policies, force=force, dry_run=dry_run, spark=lambda: connection.spark)

    def _repository(self, *, create: bool = False) -> Repository:
        self._connection.require_open()
        return open_repository(self._connection.settings, create=create)

    def _care(self, catalog: str | None = None) -> AbstractContextManager[UpkeepContext]:
        connection = self._connection
        connection.require_open()
        return open_context(connection.settings, catalog or connection.catalog, spark=lambda: connection.spark)


def _plan(
    care: UpkeepContext, repository: Repository, backup: str, table: str | None, to: str | None, target: RestoreTarget
) -> RestorePlan:
    record = find_record(repository, backup)
    found = find_tables(record, table)
    if len(found) != 1:
        names = ", ".join(".".join(one.identifier) for one in found)
        raise UsageError(f"backup '{record.name}' has {len(found)} tables: {names}", hint="table=…")
    named = change(target, name=choose_target_name(found[0], to))
    return plan_restore(care, repository, record, found[0], named)
