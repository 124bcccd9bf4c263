"""Stages of the content sink, in this process, without Spark."""

from __future__ import annotations

import pickle

import pyarrow as pa

from frazil.content.sink.head_requests import HeadRequests
from frazil.content.sink.stages import LAYOUT, EventReader
from frazil.errors import UnavailableError
from frazil.log.protocol import Span
from frazil.tables.writing.data_files import WriteTarget
from frazil.topics.dead_letters.writer import Origin
from frazil.topics.layout import ensure_dead_letters
from frazil.topics.sinks.keyed_tasks import REPORT, ReadTask
from tests.content_sink_kit import body
from tests.content_truth import Told
from tests.sink_kit import sink_kit


def test_a_change_that_does_not_fit_the_journal_fails_the_batch_and_is_not_lost(tmp_path):
    with sink_kit(tmp_path) as kit:
        kit.create("events")
        kit.publish("events", body(Told()))
        dead = WriteTarget.of(ensure_dead_letters(kit.store, kit.settings))
        kit.store.catalog.create_namespace_if_not_exists("content")
        journal = kit.store.catalog.create_table("content.journal", pa.schema([("bucket", pa.string())]))
        reading = ReadTask(
            layout=LAYOUT,
            address=kit.client.address,
            view=kit.log.info("events").view,
            parts=(Span(0, 1, 0),),
            nearby=True,
            reader=EventReader("events", "auto", HeadRequests.of(kit.settings)),
            side=WriteTarget.of(journal),
            side_from=0,
            dead=dead,
            origin=Origin("content", "events", "aa"),
            known_dead=frozenset(),
            batch_id="1",
        )
        (row,) = reading([pa.record_batch({"id": [0]})])
        (error,) = map(pickle.loads, row.column(REPORT.name).to_pylist())
        assert isinstance(error, UnavailableError) and error.retryable
        assert "a row of the journal does not fit the columns of its table" in error.message
