"""A sink that was enabled late takes from the archive what the log no longer has, once and in order, then the log."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from frazil.errors import FrazilError, IntegrityError
from frazil.log.protocol import TopicInfo
from frazil.observe.faultpoints import handled
from frazil.tables import find_position, remove_files
from frazil.topics.layout import ARCHIVE, ensure_topic_table, table_name
from frazil.topics.positions import ForeignLogError, LogGapError
from frazil.topics.sinks.archive import ArchiveSink
from frazil.topics.sinks.backfill import Backfill
from frazil.topics.sinks.engine import Engine
from frazil.topics.sinks.jobs import in_process
from frazil.topics.sinks.pipeline import Pipeline
from tests.sink_kit import SinkKit, put_dead_letters, sink_kit
from tests.topic_kit import TopicTable

TOPIC = "orders"
COPY = "copy"
#: Weighs one small file: a batch of the archive per file.
FILE = str(256 * 1024)


class CopySink(ArchiveSink):
    """Another table of the same messages, with its own position."""

    name = COPY

    def table(self, info: TopicInfo) -> Table:
        self._dead_letters.forget(info.name)
        return ensure_topic_table(self._store, self._settings, replace(info, name=f"{info.name}_copy"))

    def backfill(self, topic: str) -> Backfill:
        return Backfill(self._store, self._settings, topic, self.name)


class FaultError(Exception):
    """The process 'dies' here."""


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[SinkKit]:
    flags = {"log.max_file_size": "4096", "pipeline.target_bytes": FILE}
    with sink_kit(tmp_path, **flags) as made:
        made.create(TOPIC)
        yield made


def publish(kit: SinkKit, count: int = 4, **columns: Any) -> None:
    first = len(kit.acknowledged.get(TOPIC, ()))
    kit.publish(TOPIC, *(b"%d " % (first + n) + b"x" * 400 for n in range(count)), **columns)


def archive(kit: SinkKit, commits: int = 5, count: int = 4) -> int:
    """Publishes, archives and retains; returns where the log begins then."""
    for _ in range(commits):
        publish(kit, count)
        kit.engine(TOPIC).catch_up()
    return kit.client.retain(TOPIC, age_s=0.0).start


def late(kit: SinkKit) -> Engine:
    """The late sink, as in a new process."""
    if COPY not in kit.client.info(TOPIC).sinks:
        kit.client.configure(TOPIC, {"sinks": [ARCHIVE, COPY]})
    sink = CopySink(kit.store, kit.settings, kit.client.address)
    return Engine(TOPIC, sink, kit.client, in_process, kit.settings.model.pipeline)


def copied(kit: SinkKit) -> list[tuple[int, bytes]]:
    rows = kit.store.load(table_name(kit.settings, f"{TOPIC}_copy")).scan().to_arrow().to_pylist()
    return sorted((row["offset"], row["payload"]) for row in rows)


def acknowledged(kit: SinkKit, first: int = 0) -> list[tuple[int, bytes]]:
    return sorted((o, p) for o, p in kit.acknowledged[TOPIC].items() if o >= first)


def compact(kit: SinkKit) -> None:
    """Every file is replaced, and the old ones are gone from the disk."""
    table = TopicTable(kit.client, TOPIC, kit.settings)
    table.rewrite()
    table.expire()


def test_the_archive_then_the_log_each_message_once_with_all_columns(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"with", headers=pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string())), price=[7])
    start = archive(kit)
    assert start > 4
    publish(kit)
    turn = late(kit).catch_up()
    assert copied(kit) == acknowledged(kit)
    assert turn.commits > 3, "batch by batch"
    both = [
        kit.store.load(table_name(kit.settings, name)).scan().to_arrow().sort_by("offset").slice(0, start)
        for name in (TOPIC, f"{TOPIC}_copy")
    ]
    assert both[0].to_pylist() == both[1].to_pylist()
    assert kit.client.info(TOPIC).sinks[COPY] == len(kit.acknowledged[TOPIC])


def test_a_sink_that_was_away_while_the_log_was_trimmed_goes_on_in_the_archive(kit: SinkKit) -> None:
    publish(kit)
    late(kit).catch_up()
    kit.client.configure(TOPIC, {"sinks": [ARCHIVE]})
    assert archive(kit) > 4
    late(kit).catch_up()
    assert copied(kit) == acknowledged(kit)


@pytest.mark.deep
def test_a_fault_at_any_step_of_a_backfill_neither_loses_nor_doubles(kit: SinkKit) -> None:
    archive(kit)
    late(kit).run_batch(at_once=True)  # makes the table
    steps: list[str] = []
    with handled(steps.append):
        late(kit).run_batch(at_once=True)
    own = [step for step in dict.fromkeys(steps) if not step.startswith("log.")]
    assert {"sink.plan.after", "sink.task.before", "sink.commit.before", "sink.report.after"} <= set(own)
    for fatal in own:
        died = []

        def die(step: str, fatal: str = fatal, died: list[str] = died) -> None:
            if step == fatal:
                died.append(step)
                raise FaultError(step)

        late(kit).catch_up()
        kit.client.configure(TOPIC, {"sinks": [ARCHIVE]})
        before = kit.client.info(TOPIC).end
        assert archive(kit, 2, count=10) > before, "the sink needs the archive"
        with handled(die), suppress(FaultError, FrazilError):
            late(kit).catch_up()
        assert died, fatal
        late(kit).catch_up()
        assert copied(kit) == acknowledged(kit), fatal


@pytest.mark.deep
@pytest.mark.parametrize("step", ["sink.plan.after", "sink.task.before", "sink.write.after", "sink.commit.after"])
def test_commits_compaction_and_retention_meanwhile_change_nothing(
    kit: SinkKit, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(kit)
    struck = 0
    missed = []
    plan_anew = Backfill.missed
    monkeypatch.setattr(Backfill, "missed", lambda *given: missed.append(given) or plan_anew(*given))

    def strike(at: str) -> None:
        nonlocal struck
        if at == step and struck < 3:
            struck += 1
            with handled(lambda _: None):
                compact(kit)
                archive(kit, 2)

    engine = late(kit)
    with handled(strike):
        engine.catch_up(kit.client.info(TOPIC).end)
    engine.catch_up()
    assert struck == 3
    assert missed, "a file of the plan was gone"
    assert copied(kit) == acknowledged(kit)


@pytest.mark.deep
def test_whatever_the_order_of_events(tmp_path: Path) -> None:
    chance = random.Random(11)
    for target in (100_000, 1_000_000):
        flags = {"log.max_file_size": "4096", "pipeline.target_bytes": str(target)}
        with sink_kit(tmp_path / str(target), **flags) as kit:
            kit.create(TOPIC)
            archive(kit, 2)
            events = [archive, compact, lambda k: late(k).run_batch(at_once=True), publish, lambda k: archive(k, 1)]
            for _ in range(20):
                chance.choice(events)(kit)
            late(kit).catch_up()
            assert copied(kit) == acknowledged(kit)


def test_what_the_archive_could_not_take_comes_from_its_dead_letters(kit: SinkKit) -> None:
    archive(kit, 1)
    publish(kit, 1, amount=pa.array([1.0]))
    kit.engine(TOPIC).catch_up()
    kit.change_type(TOPIC, "amount")
    publish(kit, 3, amount=pa.array([2.5, None, 3.5]))
    archive(kit, 3)
    dead = [row["offset"] for row in kit.dead(TOPIC)]
    assert len(dead) == 2 and max(dead) < kit.client.info(TOPIC).start
    late(kit).catch_up()
    assert copied(kit) == acknowledged(kit)
    rows = kit.store.load(table_name(kit.settings, f"{TOPIC}_copy")).scan().to_arrow().sort_by("offset").to_pylist()
    assert [rows[offset]["amount"] for offset in dead] == [2.5, 3.5]


def test_where_neither_has_the_range_the_sink_stops_and_says_so(kit: SinkKit) -> None:
    start = archive(kit)
    kit.store.catalog.drop_table(table_name(kit.settings, TOPIC))
    kit.client.configure(TOPIC, {"storage": "log", "sinks": [COPY]})
    told = f"sink copy needs topic 'orders' from offset 0 on, and offsets 0 to {start} are gone: "
    told += f"the log begins at {start}, and there is no table topics.orders of this log"
    with pytest.raises(LogGapError, match=told) as caught:
        late_alone(kit).run_batch(at_once=True)
    assert caught.value.hint == f"frazil topic adopt orders to go on at {start} without them"


def late_alone(kit: SinkKit) -> Engine:
    sink = CopySink(kit.store, kit.settings, kit.client.address)
    return Engine(TOPIC, sink, kit.client, in_process, kit.settings.model.pipeline)


def test_rows_that_have_left_the_archive_are_told_and_the_pipeline_shows_it(kit: SinkKit) -> None:
    archive(kit)
    without_first_file(kit)
    late(kit)
    makers: Any = {COPY: lambda store, settings, address, _: CopySink(store, settings, address)}
    with Pipeline(kit.settings, kit.client, None, kit.client.address, sinks=makers, run=in_process) as pipeline:
        with pytest.raises(LogGapError, match="offsets 0 to 4 are gone"):
            pipeline.drain(30)
        (status,) = [s for s in pipeline.status() if s.sink == COPY]
    assert status.state == "stopped"
    assert "its table topics.orders does not have them" in (status.reason or "")
    assert status.hint == "frazil topic adopt orders to go on at 4 without them"
    assert find_position(kit.store.load(table_name(kit.settings, f"{TOPIC}_copy")), COPY, TOPIC) is None


def without_first_file(kit: SinkKit) -> int:
    """Takes the first four messages out of the archive; returns the snapshot that had them."""
    table = kit.table(TOPIC)
    first = min(table.scan().plan_files(), key=lambda t: t.file.file_path).file.file_path
    remove_files(kit.store, table, [first])
    assert table.metadata.current_snapshot_id is not None
    return table.metadata.current_snapshot_id


def test_who_brings_the_rows_back_needs_no_more_than_that(kit: SinkKit) -> None:
    archive(kit)
    before = without_first_file(kit)
    engine = late(kit)
    with pytest.raises(LogGapError):
        engine.catch_up()
    kit.table(TOPIC).manage_snapshots().rollback_to_snapshot(before).commit()
    engine.catch_up()
    assert copied(kit) == acknowledged(kit)


def test_an_archive_that_begins_with_dead_letters_has_no_gap(kit: SinkKit) -> None:
    archive(kit)
    without_first_file(kit)
    place = {"segment_id": 0, "segment_offset": pa.array(range(4), pa.int64()), "publish_time": datetime.now(UTC)}
    put_dead_letters(kit, TOPIC, 0, 4, log_id=kit.client.info(TOPIC).log_id, **place)
    late(kit).catch_up()
    assert copied(kit) == [(n, b"%d" % n) for n in range(4)] + acknowledged(kit, 4)


def test_a_file_that_the_archive_needs_and_has_lost_is_no_reason_to_try_for_ever(kit: SinkKit) -> None:
    archive(kit)
    kit.committed_files(TOPIC)[1].unlink()
    with pytest.raises(IntegrityError, match="is missing although its table needs it"):
        late(kit).catch_up()
    assert copied(kit) == acknowledged(kit)[:4]


def test_an_archive_of_another_log_is_none(kit: SinkKit) -> None:
    archive(kit)
    kit.client.delete_topic(TOPIC)
    kit.create(TOPIC)
    with pytest.raises(ForeignLogError):
        late(kit).catch_up()


def test_what_only_the_archive_has_in_the_middle_of_the_log_is_taken_from_there(tmp_path: Path) -> None:
    """An older copy of the log was brought back, and a sink was behind the archive then."""
    flags = {"log.max_file_size": "4096", "pipeline.target_bytes": FILE}
    with sink_kit(tmp_path, **flags) as kit:
        kit.create(TOPIC)
        publish(kit)
        late(kit).catch_up()
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    with sink_kit(tmp_path, **flags) as kit:
        kit.acknowledged[TOPIC] = dict(copied(kit))
        publish(kit, 30)
        kit.engine(TOPIC).catch_up()
        before = kit.acknowledged[TOPIC]
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "older").rename(tmp_path / "log")
    with sink_kit(tmp_path, **flags) as kit:
        kit.acknowledged[TOPIC] = before
        kit.client.sync(TOPIC)
        assert kit.client.info(TOPIC).gaps == [(4, 34)]
        late(kit).catch_up()
        assert copied(kit) == acknowledged(kit), "before anything new was published"
        publish(kit, 3)
        assert kit.client.info(TOPIC).gaps == [(4, 34)]
        for engine in (late(kit), kit.engine(TOPIC), late(kit)):
            engine.catch_up()
        assert copied(kit) == acknowledged(kit)
        assert [(r["offset"], r["payload"]) for r in kit.rows(TOPIC)] == acknowledged(kit)
        kit.store.catalog.drop_table(("topics", f"{TOPIC}_copy"))
        late(kit).catch_up()
        assert copied(kit) == acknowledged(kit), "made anew, it takes log, archive, and log"
