"""Policies of the settings: makes the backups that are due, prunes what the policies drop, and writes the metrics.

There is no state but the backups themselves: their names say which policy made them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from frazil.backup.create import create_backup
from frazil.backup.format import BackupRecord
from frazil.backup.location import open_repository
from frazil.backup.metrics import PolicyMetrics, read_metrics, write_metrics
from frazil.backup.prune import run_prune
from frazil.backup.repository import Repository
from frazil.backup.retention import RetentionPolicy
from frazil.backup.schedule import backup_name, due_since, interval_s, next_due, policy_of
from frazil.backup.selection import list_tables_of, match_tables
from frazil.errors import FrazilError, NotFoundError, translate_os_error
from frazil.observe.cancellation import StoppedError, raise_if_stopped
from frazil.observe.logs import get_logger
from frazil.observe.progress import Progress
from frazil.settings import Settings
from frazil.settings.model import BackupPolicySettings
from frazil.upkeep.context import Sessions
from frazil.upkeep.runs.open_context import open_context

log = get_logger(__name__)


@dataclass(frozen=True)
class PolicyRun:
    """What one run did for one policy.

    Attributes:
        policy: its name.
        last: when its last successful backup before this run began.
        due: whether a backup was due, or forced.
        next_due: when the following backup is due; not known where this one failed.
        backup: that was made; None: none was due, this is a dry run, or it failed.
        missing: tables and patterns of the policy that name nothing.
        dropped: backups of the policy that were pruned.
        error: why the backup, or the prune after it, failed.
    """

    policy: str
    last: datetime | None
    due: bool
    next_due: datetime | None
    backup: BackupRecord | None = None
    missing: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    error: FrazilError | None = None

    @property
    def failed(self) -> bool:
        return self.error is not None or bool(self.missing)

    def to_dict(self) -> dict[str, Any]:
        tables = self.backup.tables if self.backup else ()
        return {
            "policy": self.policy,
            "last": self.last and self.last.isoformat(),
            "due": self.due,
            "next_due": self.next_due and self.next_due.isoformat(),
            "backup": self.backup and self.backup.name,
            "tables": len(tables),
            "bytes": sum(table.bytes for table in tables),
            "new_bytes": sum(table.new_bytes for table in tables),
            "missing": list(self.missing),
            "dropped": list(self.dropped),
            "error": self.error and self.error.to_dict(),
        }


def run_policies(
    settings: Settings,
    names: Sequence[str] = (),
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    spark: Sessions | None = None,
) -> list[PolicyRun]:
    """Makes the backups that are due, one policy after the other. A policy that fails does not stop the others.

    Args:
        settings: with `backup.policies`.
        names: only these policies; by default all.
        force: due or not.
        dry_run: only say what is due.
        progress: counts what is copied.
        stop: ends it soon.
        spark: gives a session that the caller closes.

    Raises:
        NotFoundError: there is no such policy, or none at all.
        StoppedError: `stop` was set. Backups that were complete stay.
    """
    policies = _choose(settings, names)
    metrics_file = None if dry_run else settings.model.backup.metrics_file
    try:
        repository = _open(settings, create=not dry_run)
        records = _records(repository)
    except FrazilError:
        if metrics_file is not None:
            _report_failure(metrics_file, policies)
        raise
    runs = []
    try:
        for name, policy in policies.items():
            raise_if_stopped(stop)
            run = _plan(name, policy, records, repository, force=force)
            if run.due and not dry_run:
                assert repository is not None, "it was made"
                run = _run(run, policy, settings, repository, progress or Progress(), stop, spark)
            runs.append(run)
    finally:
        if metrics_file is not None and repository is not None:
            _report(metrics_file, settings, repository, runs)
    return runs


def _choose(settings: Settings, names: Sequence[str]) -> dict[str, BackupPolicySettings]:
    policies = settings.model.backup.policies
    if not policies:
        raise NotFoundError("the settings have no policies for backups", hint="backup.policies, see docs/backup.md")
    for name in names:
        if name not in policies:
            raise NotFoundError(f"there is no policy '{name}'", hint=f"one of: {', '.join(sorted(policies))}")
    return {name: policy for name, policy in policies.items() if not names or name in names}


def _open(settings: Settings, *, create: bool) -> Repository | None:
    try:
        return open_repository(settings, create=create)
    except NotFoundError:
        if create:
            raise
        return None


def _records(repository: Repository | None) -> list[BackupRecord]:
    found = repository.list_records() if repository else []
    return [record for record in found if isinstance(record, BackupRecord)]


def _of_policy(records: Sequence[BackupRecord], policy: str) -> list[BackupRecord]:
    return [record for record in records if policy_of(record.name, [policy]) == policy]


def _plan(
    name: str,
    policy: BackupPolicySettings,
    records: Sequence[BackupRecord],
    repository: Repository | None,
    *,
    force: bool,
) -> PolicyRun:
    own = _of_policy(records, name)
    last = own[-1].started_at if own else None
    if repository is None:
        return PolicyRun(name, None, due=True, next_due=None)
    now = repository.now()
    due = force or due_since(policy, last, now) is not None
    return PolicyRun(name, last, due, None if due else next_due(policy, last, now))


def _run(
    run: PolicyRun,
    policy: BackupPolicySettings,
    settings: Settings,
    repository: Repository,
    progress: Progress,
    stop: threading.Event | None,
    spark: Sessions | None,
) -> PolicyRun:
    try:
        with open_context(settings, policy.catalog, stop, spark=spark) as care:
            tables, missing = match_tables(list_tables_of(care.store), policy.tables)
            if not tables:
                raise NotFoundError(
                    f"policy '{run.policy}' names no table of catalog '{care.catalog.name}'",
                    cause=f"its tables are {', '.join(policy.tables)}",
                    hint=f"frazil table list, then backup.policies.{run.policy}.tables",
                )
            run = replace(run, missing=tuple(missing))
            name = backup_name(run.policy, repository.now())
            record = create_backup(
                care, repository, tables, name=name, data=policy.data, progress=progress, stop=care.stop
            )
        run = replace(run, backup=record, next_due=next_due(policy, record.started_at, record.created_at))
        run = replace(run, dropped=_prune(run.policy, policy, settings, repository, stop))
    except StoppedError:
        raise
    except FrazilError as error:
        return replace(run, error=error)
    except OSError as error:
        known = translate_os_error(error)
        if known is None:
            raise
        return replace(run, error=known)
    return run


def _prune(
    name: str,
    policy: BackupPolicySettings,
    settings: Settings,
    repository: Repository,
    stop: threading.Event | None,
) -> tuple[str, ...]:
    """Drops backups of a policy by its rules, and deletes what no backup needs; returns the names."""
    rules = retention_of(policy)
    if rules is None:
        return ()
    own = [record.name for record in _of_policy(_records(repository), name)]
    wait = settings.model.backup.prune_wait_s
    return tuple(run_prune(repository, rules, prune_wait_s=wait, names=own, stop=stop).dropped)


def retention_of(policy: BackupPolicySettings) -> RetentionPolicy | None:
    """Returns the rules of a policy; None where it keeps everything."""
    rules = RetentionPolicy(
        policy.keep_last or 0,
        policy.keep_daily or 0,
        policy.keep_weekly or 0,
        policy.keep_monthly or 0,
        policy.keep_yearly or 0,
        None if policy.keep_within_s is None else timedelta(seconds=policy.keep_within_s),
    )
    return None if rules == RetentionPolicy() else rules


# -- metrics -----------------------------------------------------------------------------------------------------------


def _report(file: Path, settings: Settings, repository: Repository, runs: Sequence[PolicyRun]) -> None:
    """Writes the metrics of all policies; of those that this run left out, as they were."""
    records, now = _records(repository), repository.now()
    before, by_policy = read_metrics(file), {run.policy: run for run in runs}
    found = {
        name: measure_policy(policy, _of_policy(records, name), before.get(name), by_policy.get(name), now)
        for name, policy in settings.model.backup.policies.items()
    }
    write_metrics(file, found, now)


def _report_failure(file: Path, policies: Mapping[str, BackupPolicySettings]) -> None:
    """Writes what is known where the repository cannot be read: the last metrics, and one more failure."""
    now, before = datetime.now(UTC), read_metrics(file)
    for name, policy in policies.items():
        known = before.get(name, PolicyMetrics(interval_seconds=interval_s(policy)))
        before[name] = replace(known, last_attempt_timestamp_seconds=now.timestamp(), failures=known.failures + 1)
    write_metrics(file, before, now)


def measure_policy(
    policy: BackupPolicySettings,
    records: Sequence[BackupRecord],
    before: PolicyMetrics | None,
    run: PolicyRun | None,
    now: datetime,
) -> PolicyMetrics:
    """Returns the metrics of a policy. Pure.

    Args:
        policy: with its schedule.
        records: its backups, the oldest first.
        before: what the file said before this run.
        run: what this run did for it, if anything.
        now: by the storage's clock.
    """
    before = before or PolicyMetrics()
    tried = run is not None and run.due
    failures = 0.0
    if run is not None and run.failed:
        failures = before.failures + 1
    elif not tried:
        failures = before.failures
    found = PolicyMetrics(
        last_attempt_timestamp_seconds=now.timestamp() if tried else before.last_attempt_timestamp_seconds,
        interval_seconds=interval_s(policy),
        backups=len(records),
        failures=failures,
    )
    if not records:
        return found
    last = records[-1]
    return replace(
        found,
        last_success_timestamp_seconds=last.started_at.timestamp(),
        age_seconds=(now - last.started_at).total_seconds(),
        duration_seconds=(last.created_at - last.started_at).total_seconds(),
        tables=len(last.tables),
        bytes=sum(table.bytes for table in last.tables),
        new_bytes=sum(table.new_bytes for table in last.tables),
    )
