"""Any order of our commits and of what others do to the table. One oracle: each offset is there exactly once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.snapshots import Operation

from frazil.settings import NetworkSettings
from frazil.tables import PositionMovedError, RolledBackError, TableStore, accept_rollback, adopt, commit_append
from frazil.tables.position import list_ancestors
from tests.tables import (
    SINK,
    TOPIC,
    Wrapped,
    applied_but_lost,
    at,
    embedded,
    end_of,
    lost_on_the_way,
    make_table,
    offsets_in,
    open_store,
    reached,
    rows,
    write,
)

NAME = "topics.clicks"
FOREIGN = 1_000_000
SIZES = st.integers(0, 3)


def own(offsets: list[int]) -> set[int]:
    return {o for o in offsets if o < FOREIGN}


class Schedules(RuleBasedStateMachine):
    """Two writers of ours, one of which may have an old state of the table, among all that others may do."""

    @initialize()
    def make(self) -> None:
        self.home = Path(tempfile.mkdtemp())
        self.store = open_store(embedded(self.home), delete_delay_s=0.0)
        self.known = make_table(self.store, NAME)
        self.left_out: set[int] = set()
        self.foreign = 0
        self.late: list = []

    @property
    def table(self):
        return self.store.load(NAME)

    def store_with(self, *commits) -> TableStore:
        patient = NetworkSettings(retry_attempts=3, breaker_failures=1000)
        return TableStore(Wrapped(self.store.catalog, commits), self.store.settings, patient, delete_delay_s=0.0)

    def append(self, store: TableStore, table, size: int, keep: int = 4) -> None:
        expected = reached(table)
        start = end_of(expected)
        files = write(table, start, start + size) if size else []
        goal = at(start + size)
        try:
            self.known = commit_append(store, table, files, expected=expected, reached=goal, keep_snapshots=keep).table
        except PositionMovedError as moved:
            assert moved.position == reached(self.table)
            self.known = moved.table
        except RolledBackError:
            self.known = self.table

    @rule(size=SIZES)
    def we_append(self, size) -> None:
        self.append(self.store, self.table, size)

    @rule(size=SIZES)
    def we_append_on_what_we_knew(self, size) -> None:
        try:
            self.append(self.store, self.known, size)
        except RolledBackError:
            self.known = self.table

    @rule(size=SIZES)
    def a_reply_is_lost(self, size) -> None:
        self.append(self.store_with(applied_but_lost), self.table, size)

    @rule(size=SIZES)
    def a_request_is_lost(self, size) -> None:
        self.append(self.store_with(lost_on_the_way), self.table, size)

    @rule(size=SIZES)
    def a_request_lands_late(self, size) -> None:
        def delayed(real, *args):
            self.late.append(args)
            raise TimeoutError("no answer in time")

        def overtaken(real, *args):
            self.land_late(real)
            return real(*args)

        self.append(self.store_with(delayed, overtaken), self.table, size)

    def land_late(self, real) -> None:
        while self.late:
            try:
                real(*self.late.pop())
            except CommitFailedException:
                continue

    @rule(size=SIZES)
    def another_of_ours_is_faster(self, size) -> None:
        stale = self.table
        self.append(self.store, self.table, 2)
        self.append(self.store, stale, size)

    @rule()
    def somebody_appends(self) -> None:
        self.foreign += 1
        self.table.append(rows(FOREIGN + self.foreign, FOREIGN + self.foreign + 1))

    @precondition(lambda self: self.table.current_snapshot() is not None)
    @rule()
    def somebody_compacts(self) -> None:
        self.table.overwrite(self.table.scan().to_arrow())

    @rule()
    def somebody_sets_a_property(self) -> None:
        self.table.transaction().set_properties(owner="somebody").commit_transaction()

    @precondition(lambda self: self.table.current_snapshot() is not None)
    @rule(name=st.sampled_from(["a", "b"]))
    def somebody_tags(self, name) -> None:
        table = self.table
        if name not in table.metadata.refs:
            table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, name).commit()

    @precondition(lambda self: len(self.table.metadata.snapshots) > 1)
    @rule(keep=st.integers(1, 3))
    def somebody_expires(self, keep) -> None:
        table = self.table
        held = {ref.snapshot_id for ref in table.metadata.refs.values()}
        recent = {s.snapshot_id for s in list(list_ancestors(table.metadata))[:keep]}
        old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in held | recent]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()

    @precondition(lambda self: len(list(list_ancestors(self.table.metadata))) > 1)
    @rule(back=st.integers(1, 3), keep=st.booleans())
    def somebody_rolls_back(self, back, keep) -> None:
        table = self.table
        before, rows_before = end_of(reached(table)), own(offsets_in(table))
        # PyIceberg's overwrite is two snapshots, the first of which is a table without rows: nobody goes back there.
        history = [s for s in list_ancestors(table.metadata) if s.summary.operation is not Operation.DELETE]
        target = history[min(back, len(history) - 1)].snapshot_id
        table.manage_snapshots().set_current_snapshot(snapshot_id=target).commit()
        table = self.table
        there = own(offsets_in(table))
        try:
            after = end_of(reached(table))
        except RolledBackError as error:
            if not keep and error.table_position is None and there:
                # Expiry has removed every snapshot that carried a position: as `frazil topic adopt`, ask the rows.
                table = adopt(self.store, table, at(max(there) + 1))
            else:
                table = accept_rollback(self.store, table, SINK, TOPIC, keep=keep)
            after = end_of(reached(table))
            assert after == before if keep else after <= before
        else:
            assert (there, after) == (rows_before, before), "rows are gone, and nobody was told"
        self.left_out = set(range(after)) - there
        self.known = table

    @invariant()
    def each_offset_is_there_exactly_once(self) -> None:
        table = self.table
        found = [o for o in offsets_in(table) if o < FOREIGN]
        assert len(found) == len(set(found)), "an offset is there twice"
        assert found == sorted(set(range(end_of(reached(table)))) - self.left_out)

    @invariant()
    def every_snapshot_can_be_read(self) -> None:
        table = self.table
        for ref in table.metadata.refs.values():
            table.scan(snapshot_id=ref.snapshot_id).to_arrow()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.home)


Schedules.TestCase.settings = settings(
    max_examples=6,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_any_schedule_keeps_each_offset_exactly_once = Schedules.TestCase
