"""Isolation in keyed tables: the messages of a batch that no code foresees become dead letters, and only these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from frazil.content.annotations.custom_columns import fields_of
from frazil.content.sink.head_requests import HeadRequests
from frazil.content.sink.stages import EventReader, ObjectDecider
from frazil.content.tables import ensure_journal, ensure_objects
from frazil.documents.decide import decide_writes
from frazil.documents.merge import DocumentDecider
from frazil.documents.messages import encode_revision
from frazil.documents.sink_reading import DocumentReader
from frazil.documents.store import Write
from frazil.documents.tables import ensure_history, ensure_metadata
from frazil.log.batch import batch_with_headers
from frazil.log.protocol import Span
from frazil.log.trust import add_mark
from frazil.tables.writing.data_files import WriteTarget
from frazil.topics.sinks.archive import read_span
from frazil.topics.sinks.keyed_isolation import IsolatingReader
from frazil.topics.sinks.keyed_tasks import ChangeReader, ParsedMessages
from tests.content_sink_kit import body
from tests.content_truth import Told
from tests.sink_kit import SinkKit, sink_kit

POISON = b"poison"
Prepare = Callable[[SinkKit], tuple[IsolatingReader, list[bytes]]]


@dataclass
class Poisoned:
    """A reader with a defect: it fails on some messages, and then on the whole batch."""

    reader: ChangeReader

    def __call__(self, messages: pa.Table) -> ParsedMessages:
        if pc.any(pc.match_substring(messages.column("payload").cast(pa.binary()), POISON)).as_py():
            raise KeyError("unforeseen")
        return self.reader(messages)


def of_content(kit: SinkKit) -> tuple[IsolatingReader, list[bytes]]:
    table, journal = ensure_objects(kit.store, kit.settings), ensure_journal(kit.store, kit.settings)
    reader = Poisoned(EventReader("events", "auto", HeadRequests.of(kit.settings)))
    decider = ObjectDecider(kit.settings.model.content.skew_s, fields_of(table))
    good = [body(Told(key=f"k{number}", sequence=f"0{number}")) for number in range(6)]
    return IsolatingReader(reader, decider, WriteTarget.of(table), WriteTarget.of(journal)), good


def of_documents(kit: SinkKit) -> tuple[IsolatingReader, list[bytes]]:
    table, history = ensure_metadata(kit.store, kit.settings), ensure_history(kit.store, kit.settings)
    writes = [Write("put", f"d{number}", {"filename": "a.pdf"}) for number in range(6)]
    good = [encode_revision(made) for made in decide_writes(writes, {}, {}, {}, datetime.now(UTC))]
    reader = Poisoned(DocumentReader(()))
    return IsolatingReader(reader, DocumentDecider(()), WriteTarget.of(table), WriteTarget.of(history)), good


def messages_of(kit: SinkKit, payloads: list[bytes]) -> pa.Table:
    """The messages as the log has them, with the mark of Frazil's own."""
    kit.create("events", storage="log")
    batch = batch_with_headers(payloads, [None] * len(payloads), [add_mark({})] * len(payloads))
    kit.log.append("events", batch, internal=True)
    info = kit.log.info("events")
    (messages,) = read_span(kit.client.address, info.view, Span(0, info.end, 0), nearby=False)
    return messages


@pytest.mark.parametrize("prepare", [of_content, of_documents], ids=["content", "documents"])
def test_only_the_messages_that_fail_are_rejected_and_the_others_say_the_same(tmp_path, prepare: Prepare):
    with sink_kit(tmp_path) as kit:
        reader, good = prepare(kit)
        bad = {0, 3, 7}
        rest = iter(good)
        payloads = [POISON if number in bad else next(rest) for number in range(len(good) + len(bad))]
        messages = messages_of(kit, payloads)
        found = reader(messages)
        assert {(row.row, row.reason) for row in found.rejected} == {(row, "unwritable") for row in bad}
        assert all("KeyError" in row.error for row in found.rejected)
        plain = reader.reader(messages.filter(pa.array([number not in bad for number in range(len(payloads))])))
        assert (found.changes, found.side_rows, found.count, found.bounds) == (
            plain.changes, plain.side_rows, plain.count, plain.bounds,
        )  # fmt: skip


def test_a_reader_that_always_fails_makes_no_dead_letters(tmp_path):
    def broken(_messages: pa.Table) -> ParsedMessages:
        raise KeyError("a defect that no message causes")

    with sink_kit(tmp_path) as kit:
        reader, good = of_documents(kit)
        messages = messages_of(kit, good)
        with pytest.raises(KeyError, match="no message causes"):
            IsolatingReader(broken, reader.decide, reader.table, reader.side)(messages)
