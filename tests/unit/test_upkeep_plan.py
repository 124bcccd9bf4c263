"""Plans: pure functions of what was counted."""

from __future__ import annotations

import dataclasses
import itertools
import uuid
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import SortOrder
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from frazil.tables.position import list_ancestors
from frazil.upkeep.model import KINDS, Step
from frazil.upkeep.plans.census import Census, ExpiredFiles, Manifests
from frazil.upkeep.plans.groups import Deletes, Group, Watch
from frazil.upkeep.plans.merging import merged_tier
from frazil.upkeep.plans.plan import expirable, plan
from frazil.upkeep.plans.size_tiers import FLOOR, tier_bounds, tier_of
from frazil.upkeep.policy import BUILT_IN, Policy

KIB, MIB = 1024, 1024 * 1024
HOUR, DAY = 3600, 86400
NOW_S = 1_800_000_000
SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "at", TimestamptzType()), NestedField(3, "name", StringType())
)
UNPARTITIONED = PartitionSpec(spec_id=0)
BY_DAY = PartitionSpec(PartitionField(2, 1000, DayTransform(), "day"), spec_id=0)


def policy(**changes: object) -> Policy:
    return Policy(**{**BUILT_IN, **changes})


def metadata(
    ages: Sequence[float] = (10.0,),
    refs: dict[str, SnapshotRef] | None = None,
    spec: PartitionSpec = UNPARTITIONED,
    **properties: str,
) -> TableMetadataV2:
    """A table whose main has one snapshot per age (seconds before now), oldest first; ids are 1, 2, …"""
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=number - 1 or None,
            sequence_number=number,
            timestamp_ms=int((NOW_S - age) * 1000),
            manifest_list=f"/m/{number}.avro",
            summary=Summary(Operation.APPEND, **{"removed-files-size": "100", "deleted-data-files": "2"}),
        )
        for number, age in enumerate(ages, 1)
    ]
    main = {"main": SnapshotRef(snapshot_id=len(ages), type="branch")} if ages else {}
    return TableMetadataV2(
        location="/t",
        table_uuid=uuid.uuid4(),
        last_updated_ms=NOW_S * 1000,
        last_column_id=3,
        schemas=[SCHEMA],
        current_schema_id=0,
        partition_specs=[spec],
        default_spec_id=spec.spec_id,
        sort_orders=[SortOrder(order_id=0)],
        default_sort_order_id=0,
        properties={
            "write.metadata.delete-after-commit.enabled": "true",
            **{k.replace("_", "."): v for k, v in properties.items()},
        },
        current_snapshot_id=len(ages) or None,
        snapshots=snapshots,
        refs=main | (refs or {}),
        last_sequence_number=len(ages),
    )


PLAIN = metadata()


def group(bounds: tuple[int, ...], sizes: Sequence[int], partition: tuple = (), **more: int) -> Group:
    files, size = [0] * (len(bounds) + 1), [0] * (len(bounds) + 1)
    for one in sizes:
        files[tier_of(one, bounds)] += 1
        size[tier_of(one, bounds)] += one
    return Group(0, partition, files, size, **{"rows": 100 * len(sizes), "newest": 1, **more})


def census(
    sizes: Sequence[int] = (), wanted: Policy | None = None, groups: Sequence[Group] | None = None, **changes: object
) -> Census:
    wanted = wanted or policy()
    bounds = tier_bounds(wanted.target_file_size, wanted.min_input_files)
    found = Census(
        table="shop.orders",
        metadata=PLAIN,
        taken_ms=NOW_S * 1000,
        bounds=bounds,
        groups=tuple(groups) if groups is not None else (group(bounds, sizes),),
    )
    return dataclasses.replace(found, **changes)


def steps(found: Census, wanted: Policy | None = None, **options: object) -> dict[str, Step]:
    """By kind; orphans were looked for a moment ago, unless it is said otherwise."""
    made = plan(found, wanted or policy(), **{"last": {"orphans": NOW_S - 1.0}, **options})
    return {step.kind: step for step in reversed(made)}


def test_a_table_that_is_as_it_should_be_has_no_plan():
    assert steps(census([120 * MIB] * 20)) == {}


def test_a_table_without_snapshots_has_no_plan():
    assert plan(census(metadata=metadata([])), policy()) == []


def test_ten_files_of_about_one_size_are_merged_and_nine_are_not():
    assert "compact" not in steps(census([MIB] * 9 + [20 * MIB] * 9))
    step = steps(census([MIB] * 10 + [20 * MIB] * 9))["compact"]
    assert step.options["below"] == 1536 * KIB
    assert step.cost == 10 * MIB
    assert step.gain["files"] == 9
    assert step.why == "10 files below 1.5 MiB can become about 1"


def test_nothing_is_merged_where_the_policy_says_so():
    assert steps(census([MIB] * 500), policy(compact=False)) == {}


def test_large_files_are_not_written_again_with_a_handful_of_small_ones():
    found = census([90 * MIB] * 9 + [10 * KIB] * 10)
    step = steps(found)["compact"]
    assert (step.options["below"], step.cost) == (24 * KIB, 100 * KIB)


def test_a_partition_without_new_files_for_an_hour_is_merged_across_sizes():
    sizes = [20 * MIB] * 3 + [2 * MIB] * 4 + [MIB] * 5
    busy, quiet = metadata([10 * HOUR, 10]), metadata([10 * HOUR, 2 * HOUR])
    assert "compact" not in steps(census(groups=[group(census().bounds, sizes, newest=2)], metadata=busy))
    found = census(groups=[group(census().bounds, sizes, newest=2)], metadata=quiet)
    assert steps(found)["compact"].options["below"] == 96 * MIB


def test_late_files_do_not_have_a_large_one_written_again():
    bounds = census().bounds
    late = group(bounds, [90 * MIB] + [10 * KIB] * 9)
    assert merged_tier(late, 10, 128 * MIB, quiet=True) is None
    assert merged_tier(group(bounds, [90 * MIB] + [11 * MIB] * 9), 10, 128 * MIB, quiet=True) == len(bounds) - 1


def test_a_step_names_the_partitions_that_it_is_for():
    bounds = census().bounds
    groups = [group(bounds, [MIB] * n, (20454 + n,)) for n in (3, 10, 12)]
    step = steps(census(groups=groups, metadata=metadata(spec=BY_DAY)))["compact"]
    first, second = str(step.options["partition"]).split(" OR ")
    assert first == (
        "(`at` >= TIMESTAMP_LTZ '2026-01-13 00:00:00.000000+00:00' "
        "AND `at` < TIMESTAMP_LTZ '2026-01-14 00:00:00.000000+00:00')"
    )
    assert "2026-01-11" in second
    assert step.why == "22 files below 1.5 MiB can become about 2, in 2 partitions"


def test_a_budget_bounds_a_step_to_the_partitions_with_most_to_gain():
    bounds = census().bounds
    groups = [group(bounds, [size] * 10, (day,)) for day, size in enumerate((MIB, 400 * KIB, 300 * KIB))]
    found = census(groups=groups, metadata=metadata(spec=BY_DAY))
    step = steps(found, budget=8 * MIB)["compact"]
    assert step.cost == 10 * 700 * KIB
    assert "in 2 of 3 partitions" in step.why
    alone = steps(found, budget=MIB)["compact"]
    assert (alone.cost, alone.options["budget"]) == (MIB, MIB)
    assert "in 1 of 3 partitions" in alone.why


def test_files_of_a_former_partitioning_are_taken_together():
    bounds = census().bounds
    former = [dataclasses.replace(group(bounds, [MIB] * 5, (n,)), spec_id=7) for n in range(2)]
    step = steps(census(groups=[*former, group(bounds, [MIB] * 3)]))["compact"]
    assert (step.cost, step.options["partition"]) == (10 * MIB, None)


def test_files_that_lost_many_rows_are_written_anew_and_no_others():
    bounds = census().bounds
    dirty = group(bounds, [120 * MIB] * 5, dirty_files=2, dirty_bytes=240 * MIB, deleted_rows=90)
    found = census(groups=[dirty], deletes=Deletes(vectors=2, rows=90))
    step = steps(found)["compact"]
    assert (step.options["below"], step.cost, step.gain["rows"], step.urgent) == (1, 240 * MIB, 90, False)
    assert step.why == "2 files lost many rows"


def test_files_that_many_delete_files_apply_to_are_written_anew():
    bounds = census().bounds

    def with_files(count: int, burdened: int) -> dict[str, Step]:
        found = group(bounds, [120 * MIB] * 5, equality_files=count, burdened_files=burdened, burdened_bytes=360 * MIB)
        return steps(census(groups=[found], deletes=Deletes(equality_files=count)))

    assert "compact" not in with_files(50, 0)
    step = with_files(10, 3)["compact"]
    assert (step.cost, step.options["delete_files"], step.options["below"]) == (360 * MIB, 10, 1)
    assert (step.why, step.urgent) == ("many delete files apply to 3 files", False)
    assert with_files(100, 3)["compact"].urgent


def test_what_hurts_already_is_urgent():
    assert not steps(census([MIB] * 1000))["compact"].urgent
    assert steps(census([MIB] * 1001))["compact"].urgent
    dirty = group(census().bounds, [120 * MIB] * 5, dirty_files=5, dirty_bytes=600 * MIB, deleted_rows=300)
    assert steps(census(groups=[dirty], deletes=Deletes(vectors=5, rows=300)))["compact"].urgent
    many = metadata([float(n) for n in range(501, 0, -1)])
    assert steps(census(metadata=many))["expire"].urgent
    assert not steps(census(metadata=metadata([float(n) for n in range(500, 0, -1)])))["expire"].urgent


def test_position_deletes_of_one_partition_are_merged_when_there_are_enough():
    def with_files(*counts: int) -> dict[str, Step]:
        groups = [group(census().bounds, [120 * MIB], (n,), position_files=c) for n, c in enumerate(counts)]
        return steps(census(groups=groups, deletes=Deletes(position_files=sum(counts), position_bytes=5 * MIB)))

    assert "deletes" not in with_files(9, 9)
    step = with_files(12, 3)["deletes"]
    assert (step.gain["delete_files"], step.cost, step.options["min_files"]) == (11, 5 * MIB, 10)


def test_deletes_that_delete_nothing_go():
    assert "deletes" not in steps(census([120 * MIB], deletes=Deletes(vectors=20, dangling=3)))
    assert steps(census([120 * MIB], deletes=Deletes(vectors=20, dangling=10)))["deletes"].gain["delete_files"] == 10
    assert steps(census([120 * MIB], deletes=Deletes(vectors=2, dangling=2)))["deletes"].gain["delete_files"] == 2


def test_small_manifests_are_merged_when_there_are_enough():
    few, many = (Manifests(n + 1, n * KIB, n, n * KIB) for n in (63, 64))
    assert "manifests" not in steps(census(manifests=few))
    step = steps(census(manifests=many))["manifests"]
    assert (step.gain["manifests"], step.options, step.urgent) == (63, {"small": 64}, False)


def test_old_metadata_files_are_cared_for_unless_the_table_does_not_want_it():
    unset = metadata()
    del unset.properties["write.metadata.delete-after-commit.enabled"]
    assert steps(census(metadata=unset))["metadata"].options == {"versions": 50}
    for value in ("true", "false"):
        unset.properties["write.metadata.delete-after-commit.enabled"] = value
        assert "metadata" not in steps(census(metadata=unset))


def test_files_of_expired_snapshots_are_deleted_after_their_grace():
    young, old = (ExpiredFiles(int((NOW_S - age) * 1000), 10) for age in (3599, 3600))
    assert "reclaim" not in steps(census(expired=(young,)))
    assert steps(census(expired=(old, young)))["reclaim"].gain == {"lists": 1}


def test_a_table_whose_files_may_not_be_removed_loses_none():
    old = metadata([float(n) for n in range(1000, 0, -1)])
    found = census(metadata=old, expired=(ExpiredFiles(0, 10),))
    assert set(steps(found, policy(gc=False), last={})) == set()
    assert set(steps(found, last={})) == {"expire", "reclaim", "orphans"}


def test_orphans_are_looked_for_once_a_day():
    assert "orphans" in steps(census(), last={})
    assert "orphans" not in steps(census(), last={"orphans": NOW_S - DAY + 1})
    assert steps(census(), last={"orphans": NOW_S - DAY})["orphans"].options == {"age_s": 3 * DAY}
    assert "orphans" not in steps(census(), policy(orphans=False), last={})


def test_statistics_are_computed_once_a_day_and_only_if_asked():
    found, wanted = census([MIB]), policy(statistics=True)
    assert "stats" not in steps(found)
    assert steps(found, wanted)["stats"].cost == MIB
    assert "stats" not in steps(found, wanted, last={"stats": NOW_S - HOUR})
    assert "stats" in steps(found, wanted, last={"stats": NOW_S - DAY})


def test_rows_leave_when_whole_files_are_old_and_files_are_written_anew_only_when_it_is_overdue():
    wanted = policy(retention_column="at", retention_age_s=10.0 * DAY)
    before = int((NOW_S - 10 * DAY) * 1e6)

    def watching(**seen: int) -> dict[str, Step]:
        return steps(census(watch=Watch(2, TimestamptzType(), before, **seen)), wanted)

    assert "retention" not in watching(oldest_us=before + 1)
    whole = watching(old_files=3, old_bytes=5, old_rows=7, oldest_us=before - 1)["retention"]
    assert whole.options == {"column": "at", "before_us": before, "exact": False}
    assert (whole.gain, whole.cost) == ({"files": 3, "rows": 7, "bytes": 5}, 0)
    day = int(DAY * 1e6)
    assert "retention" not in watching(mixed_files=1, mixed_bytes=9, oldest_us=before - day)
    assert watching(mixed_files=1, mixed_bytes=9, oldest_us=before - day - 1)["retention"].cost == 9


def test_steps_come_in_the_order_in_which_they_should_be_taken():
    found = census(
        [MIB] * 20,
        metadata=metadata([float(n) for n in range(300, 0, -1)]),
        manifests=Manifests(100, 100 * KIB, 100, 100 * KIB),
        expired=(ExpiredFiles(0, 1),),
    )
    kinds = [step.kind for step in plan(found, policy(statistics=True))]
    assert kinds == ["compact", "manifests", "expire", "reclaim", "stats", "orphans"]
    assert sorted(kinds, key=KINDS.index) == kinds


def test_expiry_waits_for_some_snapshots_but_not_for_long():
    def ages(count: int, oldest: float) -> Census:
        return census(metadata=metadata([oldest, *(float(n) for n in range(count - 1, 0, -1))]))

    assert "expire" not in steps(ages(109, 200.0))
    step = steps(ages(110, 200.0))["expire"]
    assert step.options["snapshots"] == list(range(1, 11))
    assert step.gain == {"snapshots": 10, "files": 20, "bytes": 1000}
    assert "expire" not in steps(ages(50, 5.0 * DAY + 1))
    assert "expire" in steps(ages(50, 5.0 * DAY + HOUR))
    assert "expire" in steps(ages(9, 5.0 * DAY + 1))


# --- what holds for every table


def _merge(sizes: list[int], below: int, target: int) -> tuple[list[int], int]:
    """As Iceberg does: whole files of the target's size, and what is left of them."""
    taken = [size for size in sizes if size < below]
    total = sum(taken)
    made = [target] * (total // target)
    rest = total - sum(made)
    if made and rest < target // 10:
        made[-1] += rest
    elif rest:
        made.append(rest)
    return [size for size in sizes if size >= below] + made, total


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(st.integers(4 * KIB, 150 * MIB), max_size=25), min_size=1, max_size=15),
    st.integers(2, 20),
    st.sampled_from([MIB, 16 * MIB, 128 * MIB]),
    st.booleans(),
)
def test_plans_come_to_an_end_and_each_byte_is_written_a_few_times_only(arrivals, min_files, target, quiet):
    wanted = policy(min_input_files=min_files, target_file_size=target)
    bounds = tier_bounds(target, min_files)
    shown = metadata([2 * HOUR] if quiet else [10])
    sizes: list[int] = []
    written = came = 0
    for arrived in arrivals:
        sizes += arrived
        came += sum(arrived)
        for _ in range(len(bounds) + 2):
            step = steps(census(sizes, wanted, metadata=shown), wanted).get("compact")
            if step is None:
                break
            before = len(sizes)
            sizes, cost = _merge(sizes, step.options["below"], target)
            assert cost == step.cost
            written += cost
            assert len(sizes) < before
        else:
            raise AssertionError("it does not come to an end")
        small = [size for size in sizes if size < bounds[-1]]
        assert len(small) < min_files * len(bounds)
    # A rest that Iceberg leaves is of the same tier again, and smaller than what it was made of.
    assert written <= (len(bounds) + 1) * came


def test_a_small_file_a_second_is_written_again_as_often_as_there_are_tiers():
    wanted = policy()
    sizes: list[int] = []
    written = 0
    for _ in range(4000):
        sizes.append(40 * KIB)
        step = steps(census(sizes, wanted), wanted).get("compact")
        if step is not None:
            sizes, cost = _merge(sizes, step.options["below"], wanted.target_file_size)
            written += cost
    assert written <= 4 * sum(sizes)
    assert len(sizes) < 40


@st.composite
def histories(draw):
    """A main with tags, pins and branches, some of which begin in its middle and go on by themselves."""
    count = draw(st.integers(1, 40))
    gaps = draw(st.lists(st.integers(1, 20 * HOUR), min_size=count, max_size=count))
    ages = [float(sum(gaps[n:])) for n in range(count)]
    refs = {}
    for number, at in enumerate(draw(st.lists(st.integers(1, count), max_size=4))):
        kind = draw(st.sampled_from(["tag", "pin", "branch"]))
        lease = draw(st.sampled_from([None, 60_000, 40 * DAY * 1000]))
        name = {"tag": f"t{number}", "pin": f"frazil-pin-backup-{number}", "branch": f"b{number}"}[kind]
        refs[name] = SnapshotRef(
            snapshot_id=at, type="branch" if kind == "branch" else "tag",
            **({"max-ref-age-ms": lease} if lease else {}),
        )  # fmt: skip
    return metadata(ages, refs)


@settings(max_examples=100, deadline=None)
@given(histories(), st.integers(1, 50), st.integers(1, 20), st.floats(1, 30 * DAY))
def test_only_the_oldest_of_main_goes_and_nothing_that_is_held(found, most, least, age):
    wanted = policy(max_snapshots=max(most, least), min_snapshots=least, max_snapshot_age_s=age)
    going = expirable(census(metadata=found), wanted)
    history = [s.snapshot_id for s in list_ancestors(found)][::-1]
    times = {s.snapshot_id: s.timestamp_ms for s in found.snapshots}
    held = set()
    for name, ref in found.refs.items():
        if ref.max_ref_age_ms is not None and NOW_S * 1000 - times[ref.snapshot_id] > ref.max_ref_age_ms:
            continue
        held.add(ref.snapshot_id)
        if name.startswith("b"):  # a branch has a history of its own that stays
            of_branch = [i for i in reversed(history) if i <= ref.snapshot_id]
            held |= {i for n, i in enumerate(of_branch) if n < least or NOW_S * 1000 - times[i] <= age * 1000}
    assert not set(going) & held
    assert not set(going) & set(history[-least:])
    if going:
        prefix = history[: history.index(going[-1]) + 1]
        assert set(prefix) - set(going) <= held
    assert going == sorted(going)


@settings(deadline=None)
@given(st.integers(MIB, 2048 * MIB), st.integers(2, 100))
def test_merging_as_many_files_as_are_asked_for_gives_one_of_a_higher_tier(target, min_files):
    bounds = tier_bounds(target, min_files)
    assert list(bounds) == sorted(set(bounds))
    assert bounds[-1] == target * 3 // 4
    assert bounds[0] >= FLOOR
    for lower, upper in itertools.pairwise(bounds):
        assert min_files * lower >= upper - min_files
