"""What adoption of a new log does to the tables of the content sink: the journal goes on with them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from frazil.content.names import CONTENT
from frazil.content.tables import ensure_journal, ensure_objects
from frazil.content.topic import ensure_events_topic
from frazil.log.batch import Batch
from frazil.tables import Position, commit_append, find_position
from frazil.topics.admin.adopt import Adopting
from frazil.topics.committed_offsets import committed_offsets
from frazil.topics.positions import ForeignLogError
from frazil.topics.side_table import append_to_side_table
from tests.sink_kit import SinkKit, sink_kit


@pytest.fixture
def kit(tmp_path) -> Iterator[SinkKit]:
    with sink_kit(tmp_path) as made:
        ensure_events_topic(made.log, made.settings)
        yield made


@pytest.mark.parametrize(("journal", "objects"), [(3, 3), (9, 7), (7, 9)])
def test_the_journal_goes_on_with_the_adopted_log_and_no_offset_comes_twice(kit: SinkKit, journal: int, objects: int):
    """Also where a crash between the two commits has left one of them ahead."""
    topic = kit.settings.model.content.topic
    for ensure, offset in ((ensure_journal, journal), (ensure_objects, objects)):
        former = Position(CONTENT, topic, {0: offset}, "of-another-log", 1, uuid.uuid4().hex)
        commit_append(kit.store, ensure(kit.store, kit.settings), [], expected=None, reached=former)
    info = kit.log.info(topic)
    with pytest.raises(ForeignLogError):
        committed_offsets(kit.settings)(topic, info.log_id)
    adopting = Adopting(kit.client, kit.settings, topic, kit.tables)
    adopting.do(adopting.plan())

    highest = max(journal, objects)
    assert committed_offsets(kit.settings)(topic, info.log_id) == highest
    expected = find_position(ensure_journal(kit.store, kit.settings), CONTENT, topic)
    assert expected is not None
    assert (expected.log_id, expected.offsets) == (info.log_id, {0: highest})
    assert kit.log.append(topic, Batch.of_messages([b"{}"])).offset == highest

    # The next batch of the sink appends to it, and moves it on.
    reached = Position(CONTENT, topic, {0: highest + 1}, info.log_id, info.epoch, uuid.uuid4().hex)
    table = ensure_journal(kit.store, kit.settings)
    done = append_to_side_table(kit.store, table, [], expected=expected, reached=reached, keep_snapshots=5)
    assert find_position(done.table, CONTENT, topic) == reached
