"""What a policy asks for, of a table as it was counted. Pure: a plan changes nothing, and reads nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from frazil.upkeep.expiry.expire import choose
from frazil.upkeep.model import KINDS, Kind, Step
from frazil.upkeep.plans.format_amounts import format_age, format_count
from frazil.upkeep.plans.merging import compactions
from frazil.upkeep.rewrite.metadata import ENABLED

if TYPE_CHECKING:
    from frazil.upkeep.plans.census import Census
    from frazil.upkeep.policy import Policy

#: Times as many snapshots as a policy wants to have: each commit and each plan is slow by then.
_TOO_MANY_TIMES = 5
#: A commit for a single snapshot is not worth it where there are many; but none waits longer than this.
_EXPIRY_BATCH = 10
_EXPIRY_WAIT_S = 3600.0
#: Share of their age by which old rows may outstay it before files are written anew for them.
_OVERDUE = 0.1


def plan(
    census: Census, policy: Policy, *, budget: int | None = None, last: Mapping[Kind, float] | None = None
) -> list[Step]:
    """The steps in the order in which they should be taken.

    Args:
        census: of the table.
        policy: of the same.
        budget: bytes that one step should read and write at most; None: any number.
        last: when steps of a kind were last done, in seconds since 1970, as far as it is known. It counts for what is
            done now and then: orphans, stats.
    """
    if census.metadata.current_snapshot_id is None:
        return []
    done = last or {}
    steps = itertools.chain(
        _retention(census, policy),
        compactions(census, policy, budget),
        _deletes(census, policy, budget),
        _manifests(census, policy),
        _expire(census, policy),
        _reclaim(census, policy),
        _metadata(census, policy),
        _stats(census, policy, done.get("stats")),
        _orphans(census, policy, done.get("orphans")),
    )
    return sorted(steps, key=lambda step: KINDS.index(step.kind))


def expirable(census: Census, policy: Policy) -> list[int]:
    """The snapshots that the policy lets go, oldest first."""
    if not policy.gc:
        return []
    return choose(
        census.metadata,
        max_age_s=policy.max_snapshot_age_s,
        max_snapshots=policy.max_snapshots,
        min_snapshots=policy.min_snapshots,
        now_ms=census.taken_ms,
    )


def _retention(census: Census, policy: Policy) -> Iterator[Step]:
    watch = census.watch
    if watch is None or policy.retention_age_s is None:
        return
    overdue = watch.before_us - policy.retention_age_s * _OVERDUE * 1e6
    exact = bool(watch.mixed_files) and watch.oldest_us is not None and watch.oldest_us < overdue
    if not watch.old_files and not exact:
        return
    said = [f"{format_count(watch.old_files, 'file')} with nothing younger"] if watch.old_files else []
    said += [f"{format_count(watch.mixed_files, 'file')} with such rows among others"] if exact else []
    yield Step(
        "retention",
        why=f"rows older than {format_age(policy.retention_age_s)} by {policy.retention_column}: {', '.join(said)}",
        gain={"files": watch.old_files, "rows": watch.old_rows, "bytes": watch.old_bytes},
        cost=watch.mixed_bytes if exact else 0,
        options={"column": policy.retention_column, "before_us": watch.before_us, "exact": exact},
    )


def _deletes(census: Census, policy: Policy, budget: int | None) -> Iterator[Step]:
    """Files of position deletes that can be merged, and deletes of whatever kind that no row is left for."""
    deletes = census.deletes
    crowded = [group.position_files for group in census.groups if group.position_files >= policy.delete_files]
    useless = deletes.dangling >= policy.delete_files or 0 < deletes.dangling == census.delete_files
    if not policy.compact or not (crowded or useless):
        return
    said = []
    if crowded:
        where = format_count(len(crowded), "partition")
        said.append(f"{format_count(sum(crowded), 'file')} of position deletes in {where} can be merged")
    if deletes.dangling:
        said.append(f"{format_count(deletes.dangling, 'delete')} for data that is gone already")
    cost = deletes.position_bytes if crowded else 0
    yield Step(
        "deletes",
        why=", ".join(said),
        gain={"delete_files": max(deletes.dangling, sum(crowded) - len(crowded))},
        cost=cost if budget is None else min(cost, budget),
        options={"min_files": policy.delete_files, "budget": budget},
        urgent=any(count > _TOO_MANY_TIMES * policy.delete_files for count in crowded),
    )


def _manifests(census: Census, policy: Policy) -> Iterator[Step]:
    found = census.manifests
    after = max(1, -(-found.small_bytes // found.target))
    if found.small >= policy.manifests:
        yield Step(
            "manifests",
            why=f"{found.small:,} of {format_count(found.count, 'manifest')} are small, and can become about {after:,}",
            gain={"manifests": found.small - after},
            cost=found.small_bytes,
            options={"small": policy.manifests},
            urgent=found.small > _TOO_MANY_TIMES * policy.manifests,
        )


def _expire(census: Census, policy: Policy) -> Iterator[Step]:
    chosen = expirable(census, policy)
    if not chosen:
        return
    snapshots = {s.snapshot_id: s for s in census.metadata.snapshots}
    most = policy.max_snapshots
    overdue = census.taken_ms / 1000 - snapshots[chosen[0]].timestamp_ms / 1000 - policy.max_snapshot_age_s
    if len(chosen) < min(_EXPIRY_BATCH, max(1, len(snapshots) // 10)) and overdue < _EXPIRY_WAIT_S:
        return
    wanted = [] if most is None else [f"at most {most:,}"]
    wanted.append(f"none older than {format_age(policy.max_snapshot_age_s)}")
    files, size = _freed(census, frozenset(chosen))
    yield Step(
        "expire",
        why=f"{format_count(len(snapshots), 'snapshot')}, and wanted are {', '.join(wanted)}",
        gain={"snapshots": len(chosen), "files": files, "bytes": size},
        options={"snapshots": chosen},
        urgent=most is not None and len(snapshots) > _TOO_MANY_TIMES * most,
    )


def _freed(census: Census, going: frozenset[int]) -> tuple[int, int]:
    """Files and bytes that no snapshot holds afterwards, about: those that a snapshot's successor has removed."""
    files = size = 0
    for snapshot in census.metadata.snapshots:
        if snapshot.parent_snapshot_id in going and snapshot.summary is not None:
            told = snapshot.summary.additional_properties
            files += sum(int(told.get(key, 0)) for key in ("deleted-data-files", "removed-delete-files"))
            size += int(told.get("removed-files-size", 0))
    return files, size


def _reclaim(census: Census, policy: Policy) -> Iterator[Step]:
    due = [f for f in census.expired if f.written_ms + policy.file_grace_s * 1000 <= census.taken_ms]
    if policy.gc and due:
        oldest = (census.taken_ms - due[0].written_ms) / 1000
        yield Step(
            "reclaim",
            why=f"files of snapshots that were expired {format_age(oldest)} ago wait to be deleted",
            gain={"lists": len(due)},
            options={"grace_s": policy.file_grace_s},
        )


def _metadata(census: Census, policy: Policy) -> Iterator[Step]:
    """Old metadata files go by themselves once the table says so; a table that says it does not want that is left."""
    if policy.gc and census.metadata.properties.get(ENABLED) is None:
        yield Step(
            "metadata",
            why=f"old metadata files are never removed; {policy.metadata_versions:,} are enough",
            options={"versions": policy.metadata_versions},
        )


def _stats(census: Census, policy: Policy, last: float | None) -> Iterator[Step]:
    metadata = census.metadata
    if not policy.statistics or any(s.snapshot_id == metadata.current_snapshot_id for s in metadata.statistics):
        return
    times = {s.snapshot_id: s.timestamp_ms / 1000 for s in metadata.snapshots}
    done = max([last or 0.0, *(times.get(s.snapshot_id, 0.0) for s in metadata.statistics)])
    since = census.taken_ms / 1000 - done
    if since >= policy.statistics_every_s:
        yield Step(
            "stats",
            why=f"the last statistics are {format_age(since)} old" if done else "there are no statistics",
            cost=census.bytes,
        )


def _orphans(census: Census, policy: Policy, last: float | None) -> Iterator[Step]:
    if not policy.orphans or not policy.gc:
        return
    since = census.taken_ms / 1000 - (last or 0.0)
    if since >= policy.orphan_every_s:
        yield Step(
            "orphans",
            why=f"nobody has looked for {format_age(since)}" if last else "nobody is known to have looked",
            options={"age_s": policy.orphan_age_s},
        )
