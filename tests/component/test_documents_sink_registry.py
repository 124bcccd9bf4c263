"""What the rest of Frazil knows of the documents sink by the registry: positions, offsets in use, adoption, upkeep."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from frazil.documents.iceberg.topic import ensure_documents_topic
from frazil.documents.names import DOCUMENTS
from frazil.documents.tables import ensure_history, ensure_metadata
from frazil.log.batch import Batch
from frazil.tables import Position, commit_append, find_position
from frazil.topics.admin.adopt import Adopting
from frazil.topics.admin.describe import describe_topic
from frazil.topics.committed_offsets import committed_offsets
from frazil.topics.positions import ForeignLogError
from tests.sink_kit import SinkKit, sink_kit

TOPIC = "documents"


@pytest.fixture
def kit(tmp_path) -> Iterator[SinkKit]:
    with sink_kit(tmp_path) as made:
        ensure_documents_topic(made.log, made.settings)
        yield made


def reach_offsets(kit: SinkKit, history: int, metadata: int, log_id: str) -> None:
    """The tables as a crash between their commits leaves them."""
    for ensure, offset in ((ensure_history, history), (ensure_metadata, metadata)):
        reached = Position(DOCUMENTS, TOPIC, {0: offset}, log_id, 1, uuid.uuid4().hex)
        commit_append(kit.store, ensure(kit.store, kit.settings), [], expected=None, reached=reached)


def test_offsets_that_only_the_history_knows_are_not_assigned_again(kit):
    reach_offsets(kit, 9, 7, "aa")
    assert committed_offsets(kit.settings)(TOPIC, "aa") == 9
    with pytest.raises(ForeignLogError):
        committed_offsets(kit.settings)(TOPIC, "another")


def test_the_position_of_the_sink_is_that_of_the_table_committed_last(kit):
    kit.log.append(TOPIC, Batch.of_messages([b"{}"] * 5))
    info = kit.log.info(TOPIC)
    reach_offsets(kit, 4, 3, info.log_id)
    shown = describe_topic(kit.client, kit.settings, TOPIC, kit.tables)
    assert shown["sinks"] == [{"sink": DOCUMENTS, "offset": 3, "lag": 2}]


@pytest.mark.parametrize(("history", "metadata"), [(3, 3), (9, 7), (7, 9)])
def test_all_tables_of_the_sink_are_adopted_so_that_the_log_can_assign_offsets(kit, history, metadata):
    reach_offsets(kit, history, metadata, "of-another-log")
    log_id = kit.log.info(TOPIC).log_id
    with pytest.raises(ForeignLogError):
        committed_offsets(kit.settings)(TOPIC, log_id)
    adopting = Adopting(kit.client, kit.settings, TOPIC, kit.tables)
    adopting.do(adopting.plan())
    for ensure in (ensure_metadata, ensure_history):
        position = find_position(ensure(kit.store, kit.settings), DOCUMENTS, TOPIC)
        assert position is not None
        assert (position.log_id, position.offsets) == (log_id, {0: max(history, metadata)})
    assert committed_offsets(kit.settings)(TOPIC, log_id) == max(history, metadata)
