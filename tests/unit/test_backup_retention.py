"""Which backups a retention policy keeps, against a simple oracle."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.backup.format import BackedUpTable, BackupRecord, BlobRef
from frazil.backup.retention import RetentionPolicy, select_backups
from frazil.errors import UsageError

START = datetime(2023, 12, 25, tzinfo=UTC)


def record(name: str, at: datetime, *uuids: str) -> BackupRecord:
    tables = tuple(
        BackedUpTable(("a", u), "c", "sql", u, "/x", 2, None, 0, (), 0, 0, 0, 0, 0, BlobRef.of(b"")) for u in uuids
    )
    return BackupRecord(name, name, at, at, "0", "copied", None, tables)


def oracle(records: list[BackupRecord], policy: RetentionPolicy) -> set[str]:
    """Kept are the newest; and a backup that is the newest of its period, if fewer than n later periods have one."""
    kept = set()
    for uuid in {table.uuid for one in records for table in one.tables}:
        mine = [one for one in records if uuid in {table.uuid for table in one.tables}]
        for one in mine:
            later = [o for o in mine if (o.created_at, o.name) > (one.created_at, one.name)]
            if len(later) < policy.keep_last:
                kept.add(one.name)
            for count, pattern in (
                (policy.daily, "%Y-%m-%d"), (policy.weekly, "%G-%V"), (policy.monthly, "%Y-%m"), (policy.yearly, "%Y"),
            ):  # fmt: skip
                period = f"{one.created_at:{pattern}}"
                periods = {f"{o.created_at:{pattern}}" for o in later}
                if period not in periods and len(periods) < count:
                    kept.add(one.name)
            newest = max(o.created_at for o in mine)
            if policy.within is not None and newest - one.created_at <= policy.within:
                kept.add(one.name)
    return kept


few = st.integers(0, 4)
policies = st.builds(
    RetentionPolicy, few, few, few, few, few, st.none() | st.integers(0, 500).map(lambda h: timedelta(hours=h))
).filter(lambda policy: not policy.is_empty)
times = st.integers(0, 800 * 24).map(lambda hours: START + timedelta(hours=hours))
backups = st.lists(st.tuples(times, st.sets(st.sampled_from("xyz"), min_size=1)), max_size=25)


@settings(max_examples=300, deadline=None)
@given(backups, policies)
def test_kept_is_what_a_simple_oracle_keeps(made: list[tuple[datetime, set[str]]], policy: RetentionPolicy) -> None:
    records = [record(f"b{number:02}", at, *sorted(uuids)) for number, (at, uuids) in enumerate(made)]
    selected = select_backups(records, policy)
    assert {name for name, reasons in selected.items() if reasons} == oracle(records, policy)
    assert list(selected) == [one.name for one in records]


def test_reasons_are_given() -> None:
    records = [record(f"d{day}", START + timedelta(days=day), "x") for day in range(10)]
    kept = select_backups(records, RetentionPolicy(keep_last=1, daily=2, yearly=2, within=timedelta(0)))
    assert kept["d9"] == ("last", "daily", "yearly", "within")
    assert kept["d8"] == ("daily",)
    assert kept["d6"] == ("yearly",)  # the last of 2023
    assert kept["d0"] == ()


def test_a_table_that_is_not_backed_up_any_more_keeps_its_backups() -> None:
    records = [record("old", START, "gone"), *[record(f"n{n}", START + timedelta(days=400 + n), "x") for n in range(3)]]
    kept = select_backups(records, RetentionPolicy(within=timedelta(days=1)))
    assert kept["old"] == ("within",)


def test_a_policy_without_rules_is_refused() -> None:
    with pytest.raises(UsageError, match="no retention rule"):
        select_backups([record("one", START, "x")], RetentionPolicy())
    with pytest.raises(UsageError, match="negative"):
        RetentionPolicy(keep_last=-1)
