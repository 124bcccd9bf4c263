"""Random schedules of writes and of all that must not change an answer, against one oracle, on every kind of store.

On SQL that is the end of a process. On Iceberg also: a crash in the middle of a write, merges into the tables, their
compaction and expiry, retention of the log, an older copy of the log, loaded files, replayed messages, and a projection
that is lost or built anew.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from frazil.documents.iceberg.store import IcebergDocumentStore
from frazil.documents.names import DOCUMENTS, history_name, metadata_name
from frazil.documents.store import Write
from frazil.log.batch import batch_with_headers
from frazil.log.log import Log
from frazil.log.messages import decode_chunk
from frazil.log.trust import add_mark
from frazil.observe.faultpoints import handled
from frazil.tables import find_position
from frazil.tables.position import position_key
from frazil.tables.store import LazyStore, find_table
from frazil.topics import open_log
from frazil.topics.dead_letters.batches import REPLAYED_FROM
from tests.documents_iceberg_kit import TOPIC, Home
from tests.documents_kit import (
    Chance,
    Clock,
    Oracle,
    Place,
    _refusal,
    outcome,
    place_of,
    require_equal,
    require_same_past,
    run_schedule,
)
from tests.log_kit import crash

STEPS = ("log.commit.before", "log.write.after", "documents.append.after", "documents.publish.after")


class DiesError(BaseException):
    """The process dies here: nothing below catches it."""


class Installation:
    """A store in Iceberg whose owner comes and goes, with its log and its tables."""

    def __init__(self, home: Home, seed: int) -> None:
        self.home, self.clock, self.oracle, self.chance = home, Clock(), Oracle(), Chance(seed)
        self.random = random.Random(seed)
        self.moments: list[Any] = []
        self.told: list[str] = []
        self._loaded = 0
        self._keyed = 0
        self._begin()

    def _begin(self) -> None:
        self.log: Log = open_log(self.home.settings)
        self.store = IcebergDocumentStore(self.home.settings, self.log, now=self.clock)
        self.store.refresh()  # as a server does before it takes anything

    def end(self) -> None:
        self.store.close()
        self.log.close()

    def run(self, steps: int) -> None:
        actions: dict[Callable[[], None], int] = {
            self.write: 60, self.die_in_a_write: 8, self.begin_anew: 3, self.merge: 8, self.compact: 3, self.expire: 3,
            self.retain: 4, self.keep_a_copy: 3, self.bring_a_copy_back: 3, self.load: 4, self.replay: 4,
            self.lose_the_projection: 2, self.rebuild: 2,
        }  # fmt: skip
        for step in range(steps):
            self.clock.advance(microseconds=self.random.choice((0, 1, 5, 10**6, -10)))
            (action,) = self.random.choices(list(actions), list(actions.values()))
            self.told.append(action.__name__)
            try:
                action()
                if step % 10 == 9 or action == self.replay:
                    self.check()
            except BaseException as error:
                error.add_note(f"step {step}: {' '.join(self.told)}")
                raise
        self.check()
        require_same_past(self.store, self.oracle)
        self.store.rebuild()
        self.check()
        require_same_past(self.store, self.oracle)

    def check(self) -> None:
        require_equal(self.store, self.oracle, self.chance, self.moments)
        tables = self.store.via_table()
        for past in (None, *self.random.sample(self.moments[-20:], min(1, len(self.moments)))):
            assert tables.get_statistics(as_of=past) == self.oracle.statistics(past)
            where = self.chance.filter(self.oracle)
            found = [document for batch in tables.iterate(where, as_of=past) for document in batch]
            assert found == self.oracle.list(where, "created_at", False, past)

    # -- actions

    def write(self) -> None:
        batch = self._batch()
        done = outcome(partial(self.store.write, batch))
        if isinstance(done, list):
            self._take(batch, done)
        else:
            assert outcome(lambda: _refusal(self.oracle, batch, self.clock.now)) == done

    def die_in_a_write(self) -> None:
        """The client repeats its request: it is applied once, whether it was before or not."""
        self._keyed += 1
        keys = [f"repeated-{self._keyed}-{number}" for number in range(3)]
        batch = [Write("put", self.random.choice(self.chance.ids), self.chance.fields(), None, key) for key in keys]
        step = self.random.choice(STEPS)

        def die(reached: str) -> None:
            if reached == step:
                raise DiesError

        # What refuses it refuses it again. A log whose thread has died does not answer: that is the crash.
        with handled(die), suppress(Exception, DiesError):
            self.store.write(batch)
        self._crash()
        done = outcome(partial(self.store.write, batch))
        if isinstance(done, list):
            self._take(batch, done)

    def begin_anew(self) -> None:
        self.end()
        self._begin()

    def merge(self) -> None:
        self.home.advance(self.log, history_only=self.random.random() < 0.3)

    def compact(self) -> None:
        """All rows of both tables in new files."""
        self._on_tables(self._rewrite)

    def expire(self) -> None:
        def expire(table: Any) -> None:
            present = table.metadata.current_snapshot_id
            old = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != present]
            if old:
                table.maintenance.expire_snapshots().by_ids(old).commit()

        self._on_tables(expire)

    def retain(self) -> None:
        """Retention as the sink allows it."""
        self.home.advance(self.log)
        with LazyStore(self.home.settings) as tables:
            table = find_table(tables.store(), metadata_name(self.home.settings))
            position = None if table is None else find_position(table, DOCUMENTS, TOPIC)
        if position is not None:
            self.log.report(TOPIC, DOCUMENTS, min(position.offsets[0], self.log.info(TOPIC).end))
            self.log.retain(TOPIC, size=0)

    def keep_a_copy(self) -> None:
        self.end()
        shutil.rmtree(self.home.folder / "copy", ignore_errors=True)
        self.home.copy_log("copy")
        self._begin()

    def bring_a_copy_back(self) -> None:
        """An older copy of the log: what it lacks is in the tables."""
        if not (self.home.folder / "copy").exists() or not self.oracle.histories:
            return
        self.home.advance(self.log)
        self.end()
        self.home.bring_log_back("copy")
        self._begin()

    def load(self) -> None:
        """Whole histories by a staged file, of documents that exist nowhere else."""
        chance, clock, made = Chance(self.random.randrange(10**6)), Clock(), Oracle()
        self._loaded += 1
        chance.ids = [f"loaded-{self._loaded}-{number}" for number in range(4)]
        for _ in range(8):
            write = Write("put", self.random.choice(chance.ids), chance.fields())
            decisions = outcome(lambda w=write: made.decide([w], clock.advance(seconds=-1)))  # before all others
            if isinstance(decisions, list) and write.document_id not in made.histories:
                made.histories[str(write.document_id)] = [decision.revision for decision in decisions]
        revisions = [revision for history in made.histories.values() for revision in history]
        assert self.store.load_revisions(made.histories.values()) == len(revisions)
        self.oracle.load(revisions)

    def replay(self) -> None:
        """A message that the log has comes again, as a dead letter that was sent again does."""
        info = self.log.info(TOPIC)
        messages = [
            row
            for chunk in self.log.chunks(TOPIC, info.start, info.end)
            for row in decode_chunk(chunk, info.view, info.start, info.end).to_pylist()
        ]
        if messages:
            chosen = self.random.choice(messages)
            headers = add_mark({REPLAYED_FROM: f"{TOPIC}/0/{chosen['offset']}"})
            self.log.append(TOPIC, batch_with_headers([chosen["payload"]], [None], [headers]), internal=True)
            self.store.refresh()

    def lose_the_projection(self) -> None:
        self.end()
        for file in self.home.link.parent.iterdir():
            file.unlink()
        self._begin()

    def rebuild(self) -> None:
        self.store.rebuild()

    # -- helpers

    def _batch(self) -> list[Write]:
        latest = {i: history[-1].revision for i, history in self.oracle.histories.items()}
        return [self.chance.write(latest) for _ in range(self.random.choice((1, 1, 1, 3)))]

    def _take(self, batch: list[Write], done: list[Any]) -> None:
        self.oracle.apply(batch, done)
        self.moments += [revision.valid_from for revision in done]

    def _crash(self) -> None:
        assert self.store._owner is not None
        self.store._owner.keeper._close_projection()  # what was not committed is gone
        crash(self.log)
        self.clock.advance(microseconds=1)
        self._begin()

    def _on_tables(self, change: Callable[[Any], None]) -> None:
        with LazyStore(self.home.settings) as tables:
            for name in (history_name(self.home.settings), metadata_name(self.home.settings)):
                table = find_table(tables.store(), name)
                if table is not None and table.metadata.current_snapshot_id is not None:
                    change(table)

    def _rewrite(self, table: Any) -> None:
        position = find_position(table, DOCUMENTS, TOPIC)
        properties = {} if position is None else {position_key(DOCUMENTS, TOPIC): position.to_json()}
        table.overwrite(table.scan().to_arrow(), snapshot_properties=properties)


@pytest.mark.long("writes, merges and opens the log hundreds of times")
@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        (1, 60),
        *(pytest.param(seed, 150, marks=pytest.mark.deep) for seed in (2, 3)),
        *(pytest.param(seed, 500, marks=[pytest.mark.slow, pytest.mark.timeout(900)]) for seed in range(10, 16)),
    ],
)
def test_nothing_that_happens_to_log_and_tables_changes_an_answer(tmp_path: Path, seed: int, steps: int):
    made = Installation(Home(tmp_path / "home", {"log.max_file_size": "20000"}), seed)
    try:
        made.run(steps)
    finally:
        made.end()


@pytest.mark.parametrize(
    ("kind", "seed"),
    [("sqlite", 1), *(pytest.param(kind, 2, marks=pytest.mark.deep) for kind in ("mysql", "postgresql"))],
)
def test_a_process_that_ends_changes_no_answer_of_a_database(services, tmp_path: Path, kind: str, seed: int):
    place = place_of(kind, services, tmp_path)
    used: dict[str, Any] = {}

    def open_store(**options: Any) -> Any:
        used.update(options)
        return place.open(**options)

    def disturb(store: Any) -> Any:
        store._engine.dispose()  # without a word, as a process that is killed between two writes
        return place.open(**used)

    run_schedule(Place(place.kind, open_store, place.url), seed, 100, disturb=disturb)
