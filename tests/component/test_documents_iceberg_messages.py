"""Messages of the topic of documents: what is encoded comes back, and nothing in a message stops the others."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
import pyarrow as pa
import pytest

from frazil.documents.arrow import table_to_revisions
from frazil.documents.decide import StoredRevision
from frazil.documents.messages import BulkFile, decode_messages, encode_bulk, encode_column, encode_revision
from frazil.documents.model import Column, Document, Revision
from frazil.log.columns import HEADERS
from frazil.log.trust import add_mark

NOW = datetime(2026, 3, 1, 12, 30, 15, 123456, UTC)
FULL = Document(
    "all:fields@1", "ü 😀.pdf", "application/pdf", 2**63 - 1, "sha256:00", "aws", "b", "a/\"b'", "v", "archive",
    "restored", NOW, datetime(9999, 12, 30, tzinfo=UTC), datetime(1, 1, 2, microsecond=1, tzinfo=UTC), NOW,
    {"a": "", "ü": "x"}, {"n": [1, None, 0.1, {"a": 2**64 - 1}], "": "\u0000"}, 7,
    {"text": "x", "number": 5, "share": 0.5, "open": False, "seen": NOW},
)  # fmt: skip
SMALL = Document("d", "a.pdf", created_at=NOW, updated_at=NOW, revision=1)


def log_of(*payloads: bytes, own: bool = True) -> pa.Table:
    headers = [list(add_mark({"source": "documents"}).items())] if own else [None]
    return pa.table(
        {
            "offset": pa.array(range(100, 100 + len(payloads)), pa.int64()),
            "payload": pa.array(payloads, pa.binary()),
            "headers": pa.array(headers * len(payloads), HEADERS),
        }
    )


def test_revisions_columns_and_staged_files_come_back_in_their_order():
    revisions = [
        StoredRevision(Revision(FULL, "update", NOW), "key", "digest"),
        StoredRevision(Revision(SMALL, "put", datetime(2026, 3, 1, tzinfo=UTC))),
    ]
    column, file = Column("department", "string"), BulkFile("file:/w/_bulk/x.parquet", 2, 10, "ab")
    found = decode_messages(
        log_of(
            encode_revision(revisions[0]),
            encode_column(column),
            encode_bulk([file, file]),
            encode_revision(revisions[1]),
        )
    )
    assert table_to_revisions(found.revisions_table.drop(["offset"])) == revisions
    assert found.revisions_table.column("offset").to_pylist() == [100, 103]
    assert (found.columns, found.bulk, [f.offset for f in found.bulk]) == ([column], [file, file], [102, 102])
    assert found.misfits == []


def changed(**fields: object) -> bytes:
    message = orjson.loads(encode_revision(StoredRevision(Revision(SMALL, "put", NOW))))
    for name, value in fields.items():
        place = message if name in message else message["document"]
        place[name] = value
    return orjson.dumps(message)


@pytest.mark.parametrize(
    "wrong",
    [
        b"", b"{", b"\xff", b"[]", b"{}", b'"text"', b"5", b'{"type": "revision", "version": 1}',
        changed(version=2), changed(type="object"), changed(type=None), changed(operation="merge"),
        changed(document_id=None), changed(document_id=5), changed(size_bytes="large"), changed(size_bytes=2**63),
        changed(created_at="yesterday"), changed(created_at=None), changed(valid_from=5), changed(tags=[]),
        changed(tags={"a": 5}), changed(document=None), changed(revision=None),
        encode_column(Column("document_id", "string")), encode_column(Column("x", "map")),  # type: ignore[arg-type]
        b'{"type":"bulk","version":1,"files":[{}]}', b'{"type":"bulk","version":1}',
    ],
)  # fmt: skip
def test_a_message_that_cannot_be_read_is_told_with_its_row_and_the_others_are_read(wrong):
    good = encode_revision(StoredRevision(Revision(SMALL, "put", NOW)))
    found = decode_messages(log_of(good, wrong, good))
    assert found.revisions_table.column("offset").to_pylist() == [100, 102]
    assert [misfit.row for misfit in found.misfits] == [1]
    assert found.columns == found.bulk == []
    assert found.misfits[0].error


def test_what_frazil_itself_has_not_published_is_never_a_change():
    good = encode_revision(StoredRevision(Revision(SMALL, "put", NOW)))
    for messages in (log_of(good, own=False), log_of(good).drop(["headers"])):
        found = decode_messages(messages)
        assert found.revisions_table.num_rows == 0
        assert [(misfit.row, misfit.reason) for misfit in found.misfits] == [(0, "untrusted")]
