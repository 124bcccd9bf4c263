"""Which files of a table are worth being merged or written anew: what is gained against what it costs.

Pure. Files are told by partition and tier (`tiers`), so that what is chosen is said by partition and size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frazil.tables.position import list_ancestors
from frazil.upkeep.model import Step
from frazil.upkeep.plans.conditions import condition_of
from frazil.upkeep.plans.format_amounts import format_count, format_size
from frazil.upkeep.plans.groups import Group

if TYPE_CHECKING:
    from frazil.upkeep.plans.census import Census
    from frazil.upkeep.policy import Policy

#: Partitions that one step names.
_PARTITIONS = 50
#: Small files of one partition that make a table slow to read already.
_TOO_MANY = 1000
#: Share of a table's rows that is deleted, at which every read pays for it.
_TOO_DELETED = 0.5
#: Times the number of equality-delete files that a policy allows for.
_TOO_MANY_TIMES = 10
#: Milliseconds without a new file after which a partition counts as complete.
_QUIET_MS = 3_600_000
#: For files that are taken for their deletes alone: none is so small.
_NO_SIZE = 1


@dataclass(frozen=True)
class Candidate:
    """A partition with something to gain.

    Attributes:
        group: the partition.
        below: files smaller than this are merged; 1 where none is.
        files: that are taken.
        bytes: their size.
        gone: files that there will be less.
        urgent: the table suffers from it already.
    """

    group: Group
    below: int
    files: int
    bytes: int
    gone: int
    urgent: bool

    @property
    def worth(self) -> tuple[bool, float]:
        """What comes first: what is urgent, then what brings most for each byte."""
        return self.urgent, (self.gone + self.group.deleted_rows / 1000 + 1) / (self.bytes + 1)


def compactions(census: Census, policy: Policy, budget: int | None) -> list[Step]:
    """The steps that would merge files, the most worthwhile first; one for each size below which files are taken."""
    if not policy.compact:
        return []
    by_size: dict[int, list[Candidate]] = {}
    for candidate in candidates(census, policy):
        by_size.setdefault(candidate.below, []).append(candidate)
    steps = [(max(c.worth for c in found), _step(census, policy, budget, found)) for found in by_size.values()]
    return [step for _, step in sorted(steps, key=lambda pair: pair[0], reverse=True)]


def candidates(census: Census, policy: Policy) -> Iterator[Candidate]:
    """What each partition has to gain, if it is worth it."""
    recent = _recent(census)
    for group in _as_iceberg_groups(census):
        quiet = group.newest < recent
        tier = merged_tier(group, policy.min_input_files, policy.target_file_size, quiet=quiet)
        # Most files are both or neither, so that their number is not that of both together.
        dirty = max((group.dirty_files, group.dirty_bytes), (group.burdened_files, group.burdened_bytes))
        if tier is None and not dirty[0]:
            continue
        small = (0, 0) if tier is None else (sum(group.files[: tier + 1]), sum(group.bytes[: tier + 1]))
        files = min(small[0] + dirty[0], sum(group.files))
        size = min(small[1] + dirty[1], sum(group.bytes))
        yield Candidate(
            group=group,
            below=_NO_SIZE if tier is None else census.bounds[tier],
            files=files,
            bytes=size,
            gone=max(0, files - max(1, -(-size // policy.target_file_size))),
            urgent=group.small_files > _TOO_MANY or _suffers(census, policy, group),
        )


def _suffers(census: Census, policy: Policy, group: Group) -> bool:
    deletes = group.deleted_rows > 0 and census.delete_ratio > _TOO_DELETED
    return deletes or group.equality_files >= _TOO_MANY_TIMES * policy.delete_files


def merged_tier(group: Group, min_files: int, target: int, *, quiet: bool) -> int | None:
    """The tier up to which the files of a partition are worth being merged; None: not yet.

    A partition that still gets files is merged where one tier has enough of them, so that the result is of a higher
    tier. In one that is complete, what is left of all tiers is taken too; but no file with others that are together
    smaller than itself, or late files would have it written again each time.
    """
    last = len(group.files) - 1
    for tier in reversed(range(last)):
        if sum(group.files[: tier + 1]) <= -(-sum(group.bytes[: tier + 1]) // target):
            continue  # there would be as many of them as before
        if group.files[tier] >= min_files:
            return tier
        if quiet and group.files[tier] and sum(group.files[: tier + 1]) >= min_files:
            finer = sum(group.bytes[:tier])
            if group.files[tier] > 1 or finer >= group.bytes[tier]:
                return tier
    return None


def _recent(census: Census) -> int:
    """The sequence number of the first commit within the last hour; a partition without one since is complete."""
    recent = [
        snapshot.sequence_number or 0
        for snapshot in list_ancestors(census.metadata)
        if census.taken_ms - snapshot.timestamp_ms < _QUIET_MS
    ]
    return min(recent, default=1 << 62)


def _as_iceberg_groups(census: Census) -> Iterator[Group]:
    """The partitions; those of former specs as one, because Iceberg takes their files together."""
    former: Group | None = None
    for group in census.groups:
        if group.spec_id == census.metadata.default_spec_id:
            yield group
            continue
        if former is None:
            width = len(group.files)
            former = Group(group.spec_id, (), [0] * width, [0] * width)
        former.add(group)
        former.position_files += group.position_files
        former.equality_files = max(former.equality_files, group.equality_files)
    if former is not None:
        yield former


def _step(census: Census, policy: Policy, budget: int | None, found: Sequence[Candidate]) -> Step:
    chosen: list[Candidate] = []
    size = 0
    for candidate in sorted(found, key=lambda c: c.worth, reverse=True)[:_PARTITIONS]:
        if chosen and budget is not None and size + candidate.bytes > budget:
            continue
        chosen.append(candidate)
        size += candidate.bytes
    below = found[0].below
    return Step(
        "compact",
        why=_why(census, chosen, below, len(found)),
        gain={"files": sum(c.gone for c in chosen), "rows": sum(c.group.deleted_rows for c in chosen)},
        cost=size if budget is None else min(size, budget),
        options={
            "target": policy.target_file_size,
            "below": below,
            "min_files": policy.min_input_files,
            "delete_ratio": policy.delete_ratio,
            "delete_files": policy.delete_files,
            "strategy": policy.strategy,
            "sort_by": list(policy.sort_by),
            "budget": budget,
            "partition": _condition(census, chosen),
        },
        urgent=any(c.urgent for c in chosen),
    )


def _why(census: Census, chosen: Sequence[Candidate], below: int, partitions: int) -> str:
    files = sum(c.files for c in chosen)
    said = []
    if below > _NO_SIZE:
        left = files - sum(c.gone for c in chosen)
        said.append(f"{format_count(files, 'file')} below {format_size(below)} can become about {left:,}")
    if dirty := sum(c.group.dirty_files for c in chosen):
        said.append(f"{format_count(dirty, 'file')} lost many rows")
    if burdened := sum(c.group.burdened_files for c in chosen):
        said.append(f"many delete files apply to {format_count(burdened, 'file')}")
    if len(census.groups) > 1:
        more = f" of {partitions:,}" if partitions > len(chosen) else ""
        said.append(f"in {len(chosen):,}{more} {'partition' if partitions == 1 else 'partitions'}")
    return ", ".join(said)


def _condition(census: Census, chosen: Sequence[Candidate]) -> str | None:
    """Of the partitions in SQL; None for the whole table, also where SQL cannot say which."""
    if len(chosen) == len(census.groups):
        return None
    metadata = census.metadata
    spec = metadata.specs()[metadata.default_spec_id]
    found = []
    for candidate in chosen:
        if candidate.group.spec_id != spec.spec_id:
            return None
        condition = condition_of(metadata.schema(), spec, candidate.group.partition)
        if condition is None:
            return None
        found.append(condition)
    return found[0] if len(found) == 1 else " OR ".join(f"({condition})" for condition in found)
