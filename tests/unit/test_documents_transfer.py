"""Documents as files: what is written can be read again without loss, and bad rows are named by their line."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.documents.arrow import TAGS
from frazil.documents.model import Column
from frazil.documents.sql.store import SqlDocumentStore
from frazil.documents.store import Write
from frazil.documents.transfer import FORMATS, Format, checks, format_of, readers
from frazil.documents.transfer.checks import check_documents
from frazil.documents.transfer.columns import check_columns
from frazil.documents.transfer.exports import export_documents, export_history
from frazil.documents.transfer.imports import import_documents
from frazil.documents.transfer.readers import Rows, read_rows
from frazil.errors import ConflictError, FrazilError, UsageError
from tests.parquet_kit import parquet_with_bad_text, unchecked_texts

COLUMNS = {"pages": "long", "note": "string", "seen": "timestamp", "is_signed": "boolean", "score": "double"}
every_format = pytest.mark.parametrize("form", FORMATS)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Any]:
    opened = []

    def open_one(name: str, *, with_columns: bool = True) -> SqlDocumentStore:
        store = SqlDocumentStore(f"sqlite:///{tmp_path / name}.db")
        opened.append(store)
        for column, kind in COLUMNS.items() if with_columns else ():
            store.add_column(column, kind)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def archive(open_store) -> SqlDocumentStore:
    """Documents with all that is difficult in a file, and a history."""
    store = open_store("archive")
    created = ["0007-01-02T00:00:00.000001Z", 0, -1.5, 1_700_000_000_123]
    documents = [
        {
            "document_id": f"d{number:03}", "filename": f'na,me "{number}" =é',
            "size_bytes": number if number % 3 else None, "bucket": "" if number % 2 else None,
            "storage_tier": "archive", "created_at": created[number % 4],
            "tags": {"a": "1,2", "ü": ""} if number % 2 else {}, "pages": number if number % 5 else None, "note": "",
            "attributes": {"x": [1, 2.5, None, {"q": '\n"'}], "large": 2**62} if number % 2 else {},
            "seen": 123456.789, "is_signed": bool(number % 2), "score": 0.1,
        }
        for number in range(12)
    ]  # fmt: skip
    store.write([Write("put", None, document) for document in documents])
    expiry = datetime.now(UTC) + timedelta(days=7)
    store.write(
        [
            Write("update", "d001", {"tags": {"z": "y"}}), Write("delete", "d002"), Write("delete", "d003"),
            Write("undelete", "d003"),
            Write("update", "d004", {"restore_status": "restored", "restore_expiry": expiry}),
            Write("delete", "d005"), Write("put", "d005", {"filename": "again.txt"}),
        ]
    )  # fmt: skip
    return store


def load(store: SqlDocumentStore, content: bytes | str | list[dict[str, Any]], form: Format = "ndjson", **more: Any):
    if isinstance(content, list):
        content = "".join(f"{json.dumps(row)}\n" for row in content)
    return import_documents(store, io.BytesIO(content.encode() if isinstance(content, str) else content), form, **more)


def parquet(rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)
    return file.getvalue()


def fields(store: SqlDocumentStore) -> dict[str, dict[str, Any]]:
    """All documents, without what the store sets."""
    left_out = ("revision", "updated_at")
    return {d.document_id: {k: v for k, v in d.items() if k not in left_out} for d in store.list_metadata()}


def refuse(
    store: SqlDocumentStore, content: bytes | str | list[dict[str, Any]], form: Format = "ndjson"
) -> FrazilError:
    before = store.fingerprint(canonical=True)
    with pytest.raises(FrazilError) as refused:
        load(store, content, form)
    assert store.fingerprint(canonical=True) == before, "a refused import changes nothing"
    return refused.value


# -- out and in again --------------------------------------------------------------------------------------------------


@every_format
def test_a_history_is_the_same_after_export_and_import(archive, open_store, form: Format):
    file, copy = io.BytesIO(), open_store("copy")
    assert export_history(archive, file, form) == 19
    report = load(copy, file.getvalue(), form)
    assert (report.rows, report.created, report.bad) == (19, 12, 0)
    assert copy.fingerprint(canonical=True) == archive.fingerprint(canonical=True)


@every_format
def test_documents_are_the_same_after_export_and_import(archive, open_store, form: Format):
    file, copy = io.BytesIO(), open_store("copy")
    assert export_documents(archive, file, form) == 11
    assert load(copy, file.getvalue(), form).created == 11
    assert fields(copy) == fields(archive)


@every_format
def test_a_repeated_import_changes_nothing(archive, form: Format):
    before = archive.fingerprint(canonical=True)
    for export in (export_documents, export_history):
        file = io.BytesIO()
        export(archive, file, form)
        report = load(archive, file.getvalue(), form)
        assert (report.created, report.updated) == (0, 0)
        assert report.unchanged > 10
    assert archive.fingerprint(canonical=True) == before


@every_format
def test_an_export_of_the_past_is_imported_as_the_present(archive, form: Format):
    moment = archive.history("d001")[0].valid_from
    file = io.BytesIO()
    assert export_documents(archive, file, form, as_of=moment) == 12
    report = load(archive, file.getvalue(), form)
    assert (report.created, report.updated, report.unchanged) == (0, 4, 8)
    assert archive.get_metadata("d001")["tags"] == {"a": "1,2", "ü": ""}
    assert archive.get_metadata("d002")["revision"] == 3


@every_format
def test_an_empty_export_is_a_file_that_can_be_imported(open_store, form: Format):
    store, file = open_store("empty"), io.BytesIO()
    assert export_documents(store, file, form) == 0
    assert load(store, file.getvalue(), form).rows == 0


def test_null_and_the_empty_text_differ_in_csv(archive):
    file = io.BytesIO()
    export_documents(archive, file, "csv")
    head, *lines = file.getvalue().decode().splitlines()
    place = head.split(",").index("bucket")
    rows = {text.split(",")[0]: text for text in lines}
    assert head.startswith("document_id,filename,")
    assert ',"",' in rows['"d001"']
    assert place > 0


def test_the_writer_of_an_interrupted_parquet_file_leaves_no_file_that_looks_whole(archive):
    file = io.BytesIO()

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_documents(archive, file, "parquet", progress=stop)
    with pytest.raises(pa.ArrowInvalid):
        pq.ParquetFile(io.BytesIO(file.getvalue()))


# -- what an import does -----------------------------------------------------------------------------------------------


def test_an_import_creates_replaces_and_leaves_alone(open_store):
    store = open_store("store")
    load(store, [{"document_id": i, "filename": f"{i}.txt", "tags": {"a": "1"}} for i in "abc"])
    store.delete_metadata("c")
    rows = [
        {"document_id": "a", "filename": "a.txt", "tags": {"a": "1"}},
        {"document_id": "b", "filename": "b.txt", "size_bytes": 5},
        {"document_id": "c", "filename": "c.txt", "tags": {"a": "1"}},
        {"document_id": "d", "filename": "d.txt"},
    ]
    report = load(store, rows)
    assert (report.created, report.updated, report.unchanged) == (1, 2, 1)
    assert store.get_metadata("b")["tags"] == {}, "an import replaces all metadata"
    assert [r.operation for r in store.history("c")] == ["put", "delete", "put"]
    assert store.get_metadata("a")["revision"] == 1


def test_rows_without_an_id_get_one_that_depends_on_their_content_alone(open_store):
    store = open_store("store")
    rows = [{"filename": "a.txt", "size_bytes": 1}, {"filename": "b.txt", "tags": {"x": "1", "y": "2"}}]
    assert load(store, rows).created == 2
    ids = {d["filename"]: d.document_id for d in store.list_metadata()}
    csv = 'filename,tags,size_bytes\nb.txt,"{""y"":""2"",""x"":""1""}",\nc.txt,,\na.txt,,1\n'
    report = load(store, csv, "csv")
    assert (report.created, report.updated, report.unchanged) == (1, 0, 2)
    assert {d["filename"]: d.document_id for d in store.list_metadata()}.items() >= ids.items()


def test_documents_are_stamped_when_they_are_loaded_and_not_when_they_were_checked(open_store):
    store = open_store("store")
    checked: list[datetime] = []
    load(store, [{"document_id": "a", "filename": "a"}], progress=lambda *_: checked.append(datetime.now(UTC)))
    document = store.get_metadata("a")
    assert document["created_at"] == document["updated_at"] == store.history("a")[0].valid_from > checked[0]


def test_a_document_that_somebody_creates_meanwhile_is_replaced(open_store):
    store = open_store("store")
    store.put_metadata({"document_id": "a", "filename": "a.txt"})
    plain = store.latest_revisions
    answers = [{}, {}]

    def latest(ids: Any) -> Any:  # as before somebody else's put
        return answers.pop() if answers else plain(ids)

    store.latest_revisions = latest  # type: ignore[method-assign]
    report = load(store, [{"document_id": "a", "filename": "b.txt"}])
    assert (report.created, report.updated) == (0, 1)
    assert store.get_metadata("a")["filename"] == "b.txt"


def test_a_history_goes_on_where_the_store_has_its_beginning(archive, open_store):
    copy, file = open_store("copy"), io.BytesIO()
    export_history(archive, file, "ndjson")
    load(copy, file.getvalue())
    archive.update_metadata("d007", {"filename": "renamed"})
    file = io.BytesIO()
    export_history(archive, file, "ndjson")
    report = load(copy, file.getvalue())
    assert (report.created, report.updated, report.unchanged) == (0, 1, 11)
    assert copy.fingerprint(canonical=True) == archive.fingerprint(canonical=True)


def test_a_history_that_the_store_has_otherwise_is_refused(archive, open_store):
    copy, file = open_store("copy"), io.BytesIO()
    copy.put_metadata({"document_id": "d003", "filename": "other"})
    export_history(archive, file, "ndjson")
    error = refuse(copy, file.getvalue())
    assert "another past of document 'd003'" in str(error.cause)
    assert [row["line"] for row in error.details["bad"]] == [6, 7, 8]


@pytest.mark.parametrize("skipped", [False, True])
def test_a_tier_that_a_document_cannot_reach_is_a_bad_row(open_store, skipped: bool):
    store = open_store("store")
    store.put_metadata({"document_id": "a", "filename": "a", "storage_tier": "archive"})
    rows = [{"document_id": "b", "filename": "b"}, {"document_id": "a", "filename": "a", "storage_tier": "standard"}]
    if not skipped:
        assert "line 2: document 'a' cannot go from tier 'archive'" in str(refuse(store, rows).cause)
        return
    bad = io.BytesIO()
    report = load(store, rows, skip_bad=bad)
    assert (report.created, report.bad) == (1, 1)
    assert json.loads(bad.getvalue())["row"]["storage_tier"] == "standard"


# -- bad rows ----------------------------------------------------------------------------------------------------------

BAD_LINES = [
    ('{"filename": "a"', "it is no JSON"),
    ("[1]", "it is a list"),
    ("12", "it is no object"),
    ('{"filename": ""}', "field 'filename' is invalid"),
    ("{}", "field 'filename' is missing"),
    ('{"filename": "a", "colour": 1}', "field 'colour' does not exist"),
    ('{"filename": "a", "size_bytes": -1}', "field 'size_bytes' is invalid"),
    ('{"filename": "a", "size_bytes": 12345678901234567890123}', "field 'size_bytes' is invalid"),
    ('{"filename": "a", "tags": "x"}', "field 'tags' is invalid"),
    ('{"filename": "a", "created_at": "yesterday"}', "field 'created_at' is invalid"),
    ('{"filename": "a", "created_at": "2999-01-01"}', "lies in the future"),
    ('{"filename": "a", "storage_tier": "cold"}', "one of: standard, infrequent"),
    ('{"filename": "a", "restore_status": "restored"}', "is restored without restore_expiry"),
    ('{"filename": "a", "pages": "many"}', "field 'pages' is invalid"),
    ('{"filename": "a", "attributes": {"n": NaN}}', "it is no JSON"),
    ('{"document_id": "a b", "filename": "a"}', "field 'document_id' is invalid"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_a_bad_line_is_named_and_nothing_is_imported(open_store, line: str, reason: str):
    error = refuse(open_store("store"), f'{{"filename": "good"}}\n\n{line}\n{{"filename": "good too"}}\n')
    assert isinstance(error, UsageError)
    assert "1 of 3 rows is bad, and nothing was imported" in error.message
    assert error.details["bad"][0]["line"] == 3
    assert reason in error.details["bad"][0]["reason"]


BAD_CSV = [
    ("filename,size_bytes\na,1\nb\nc,3\n", 3, "it has 1 values, and the head line has 2"),
    ("filename,size_bytes\na,1\nb,2,3\nc,3\n", 3, "it has 3 values"),
    ("filename,size_bytes\na,1\nb,two\nc,3\n", 3, "field 'size_bytes' is invalid: 'two'"),
    ('filename,size_bytes\n"a\nb",1\n', 2, "it has a control character"),
    ('filename,tags\na,\nb,"{""x"":1}"\n', 3, "field 'tags.x' is invalid"),
    ("filename,tags\na,\nb,x\n", 3, "field 'tags' is invalid"),
    ("filename,is_signed\na,true\nb,perhaps\n", 3, "field 'is_signed' is invalid"),
    ("filename,score\na,1e3\nb,inf\n", 3, "field 'score' is invalid"),
]


@pytest.mark.parametrize(("text", "line", "reason"), BAD_CSV)
def test_a_bad_row_of_csv_is_named_by_its_line(open_store, text: str, line: int, reason: str):
    error = refuse(open_store("store"), text, "csv")
    (bad,) = error.details["bad"]
    assert (bad["line"], reason in bad["reason"]) == (line, True), bad


def test_lines_of_csv_are_right_after_line_breaks_in_values_and_over_blocks(open_store, monkeypatch):
    monkeypatch.setattr(readers, "_BLOCK", 4096)
    rows = [f'n{number},"x\ny\nz"' if number % 10 == 0 else f"n{number},b" for number in range(2000)]
    text = "filename,bucket\n" + "\n".join(rows) + "\nshort\n"
    wrong = [b for batch in read_rows(io.BytesIO(text.encode()), "csv", {}) for b in batch.bad]
    assert [row.line for row in wrong] == [len(text.splitlines())]
    lines = [line for batch in read_rows(io.BytesIO(text.encode()), "csv", {}) for line in batch.lines]
    found = {line: text.splitlines()[line - 1].split(",")[0] for line in lines}
    assert list(found.values()) == [f"n{number}" for number in range(2000)]


def test_rows_that_are_no_text_of_utf_8_are_bad_rows(open_store):
    for form, content in (("csv", b"filename\na\nb\xff\n"), ("ndjson", b'{"filename": "a"}\n{"filename": "b\xff"}\n')):
        error = refuse(open_store("store"), content, form)
        assert error.details["bad"][0]["line"] == (3 if form == "csv" else 2)


@pytest.mark.parametrize(
    ("content", "form", "reason"),
    [
        (b"", "csv", "the file is empty"),
        (b"name,size\na,1\n", "csv", "field 'name' does not exist"),
        (b"document_id\na\n", "csv", "no column 'filename'"),
        (b"filename,filename\na,b\n", "csv", "the same name"),
        (b"filename,bucket\n" + (b'a,"' + b"x" * 9_000_000 + b'"\n') * 3, "csv", "cannot be read after line 1"),
        (b"\x89PNG\r\n\x1a\n", "csv", "no head line"),
        (b"PAR1 but no more", "parquet", "no Parquet file"),
        (parquet([{"name": "a"}]), "parquet", "field 'name' does not exist"),
    ],
)
def test_a_file_that_is_wrong_as_a_whole_is_refused(open_store, content: bytes, form: Format, reason: str):
    assert reason in refuse(open_store("store"), content, form).message


def test_a_damaged_parquet_file_is_refused(archive, open_store):
    file = io.BytesIO()
    export_history(archive, file, "parquet")
    damaged = bytearray(file.getvalue())
    damaged[60:400] = bytes(340)
    error = refuse(open_store("store"), bytes(damaged), "parquet")
    assert error.exit_code in (2, 13)


def test_a_line_that_is_too_long_is_a_bad_row_and_the_next_ones_are_read(open_store, monkeypatch):
    monkeypatch.setattr(readers, "_BLOCK", 1000)
    bad = io.BytesIO()
    text = '{"filename": "a"}\n{"filename": "' + "b" * 5000 + '"}\n{"filename": "c"}\n'
    report = load(open_store("store"), text, skip_bad=bad)
    assert (report.created, report.bad) == (2, 1)
    assert "more than" in json.loads(bad.getvalue())["reason"]


def test_an_id_that_two_rows_have_is_named_with_both_lines(open_store):
    rows = [{"document_id": i, "filename": n} for i, n in (("a", "1"), ("b", "2"), ("a", "3"))]
    assert "line 3: line 1 has document 'a' too" in str(refuse(open_store("store"), rows).cause)
    store, bad = open_store("other"), io.BytesIO()
    report = load(store, rows, skip_bad=bad)
    assert (report.created, report.bad) == (2, 1)
    assert store.get_metadata("a")["filename"] == "1"


def test_bad_rows_are_skipped_on_request_and_written_with_line_and_reason(open_store):
    text = "\n".join(['{"filename": "good"}', *(line for line, _ in BAD_LINES), '{"filename": "good too"}'])
    bad = io.BytesIO()
    report = load(open_store("store"), text, skip_bad=bad)
    assert (report.rows, report.created, report.bad) == (len(BAD_LINES) + 2, 2, len(BAD_LINES))
    written = [json.loads(line) for line in bad.getvalue().splitlines()]
    assert sorted(row["line"] for row in written) == list(range(2, len(BAD_LINES) + 2))
    assert all(row["reason"] and "row" in row for row in written)


def test_an_error_names_the_first_bad_rows_and_counts_all(open_store):
    error = refuse(open_store("store"), "\n".join(["{}"] * 500))
    assert error.message.startswith("500 of 500 rows are bad")
    assert [row["line"] for row in error.details["bad"]] == list(range(1, 21))


# -- histories ---------------------------------------------------------------------------------------------------------


def revision(number: int, operation: str = "update", **more: Any) -> dict[str, Any]:
    made = {"document_id": "a", "filename": "a", "revision": number, "operation": operation}
    return {**made, "valid_from": f"2026-01-01T00:00:0{number}Z", "created_at": "2026-01-01T00:00:01Z", **more}


@pytest.mark.parametrize(
    ("rows", "line", "reason"),
    [
        ([revision(2, "put")], 1, "revision 1 is expected"),
        ([revision(1, "put"), revision(3)], 2, "revision 2 is expected"),
        ([revision(1)], 1, "'update' as its first revision"),
        ([revision(1, "put"), revision(2, "undelete")], 2, "'undelete' after 'put'"),
        ([revision(1, "put"), revision(2, "delete"), revision(3)], 3, "'update' after 'delete'"),
        ([revision(1, "put"), revision(2, valid_from="2025-01-01")], 2, "older than the one before"),
        ([revision(1, "put"), revision(2, created_at="2025-01-01")], 2, "changes created_at"),
        ([revision(1, "put", valid_from="2999-01-01")], 1, "lies in the future"),
        ([revision(1, "put"), {"document_id": "a", "filename": "a"}], 2, "field 'operation' is missing"),
        ([revision(1, "replace")], 1, "field 'operation' is invalid"),
        ([revision(1, "put", revision="one")], 1, "field 'revision' is invalid"),
        ([revision(1, "put", size_bytes=-1)], 1, "field 'size_bytes' is invalid"),
        ([revision(1, "put"), revision(1, "put", document_id="b"), revision(2)], 3, "revision 1 is expected"),
    ],
)
def test_a_history_with_a_fault_is_refused(open_store, rows: list[dict[str, Any]], line: int, reason: str):
    found = {row["line"]: row["reason"] for row in refuse(open_store("store"), rows).details["bad"]}
    assert reason in found[line], found


def test_one_bad_revision_makes_its_whole_document_bad_and_no_other(open_store):
    store, bad = open_store("store"), io.BytesIO()
    rows = [revision(1, "put"), revision(2, size_bytes="x"), revision(3), revision(1, "put", document_id="b")]
    report = load(store, rows, skip_bad=bad)
    assert (report.created, report.bad) == (1, 3)
    assert [d.document_id for d in store.list_metadata()] == ["b"]
    assert [json.loads(line)["line"] for line in bad.getvalue().splitlines()] == [1, 2, 3]


def test_a_document_that_stands_at_two_places_of_a_history_is_refused(open_store):
    rows = [revision(1, "put"), revision(1, "put", document_id="b"), revision(1, "put")]
    assert "stands at line 1 too" in refuse(open_store("store"), rows).details["bad"][0]["reason"]


def test_a_document_that_stands_again_behind_a_skipped_one_is_skipped_with_that_line(open_store):
    """Nothing stands between the two in what was checked, because the bad document between them was left out."""
    rows, bad = [revision(1, "put"), revision(2), revision(1, "put", document_id="b", size_bytes=-1)], io.BytesIO()
    again = [revision(1, "put"), revision(2, filename="other.pdf")]
    store = open_store("store")
    report = load(store, [*rows, *again], skip_bad=bad)
    assert report.to_dict() == {"rows": 5, "created": 1, "updated": 0, "unchanged": 0, "bad": 3}
    assert [found["line"] for found in map(json.loads, bad.getvalue().splitlines())] == [3, 4, 5]
    assert [r.document.filename for r in store.history("a")] == [row["filename"] for row in rows[:2]]


def test_documents_and_revisions_do_not_mix(open_store):
    store = open_store("store")
    assert "the file began with documents" in str(refuse(store, [{"filename": "a"}, revision(1, "put")]).cause)


# -- foreign files -----------------------------------------------------------------------------------------------------


def test_parquet_of_other_tools_is_read(open_store):
    store = open_store("store")
    nanos = pa.timestamp("ns")
    schema = pa.schema(
        {
            "filename": pa.dictionary(pa.int32(), pa.string()), "size_bytes": pa.float64(), "created_at": nanos,
            "tags": pa.struct({"a": pa.string(), "b": pa.string()}), "pages": pa.float32(),
            "attributes": pa.large_string(),
        }
    )  # fmt: skip
    rows = [
        {
            "filename": "x", "size_bytes": 12.0, "created_at": datetime(2020, 1, 1), "tags": {"a": "1", "b": None},
            "pages": math.nan, "attributes": '{"n": 1}',
        },
        {"filename": "y", "size_bytes": None},
    ]  # fmt: skip
    assert load(store, parquet(rows, schema), "parquet").created == 2
    found = {d["filename"]: d for d in store.list_metadata()}
    assert found["x"]["size_bytes"] == 12
    assert found["x"]["created_at"] == datetime(2020, 1, 1, tzinfo=UTC)
    assert found["x"]["tags"] == {"a": "1"}
    assert found["x"]["attributes"] == {"n": 1}
    assert "pages" not in found["x"].columns


@pytest.mark.parametrize(
    ("field", "row"),
    [("filename", 1), ("filename", 0), ("bucket", 1), ("tags", 1), ("attributes", 2), ("note", 1)],
)
def test_a_text_of_parquet_that_is_not_utf_8_makes_its_row_bad(open_store, field: str, row: int):
    store, bad = open_store("store"), io.BytesIO()
    content = parquet_with_bad_text(field, row)
    error = refuse(store, content, "parquet")
    assert f"line {row + 1}: field '{field}' is not UTF-8" in str(error.cause)
    report = load(store, content, "parquet", skip_bad=bad)
    assert (report.created, report.bad) == (2, 1)
    found = json.loads(bad.getvalue())
    assert (found["line"], found["row"]["document_id"]) == (row + 1, f"d{row}")
    assert {d["document_id"] for d in store.list_metadata()} == {"d0", "d1", "d2"} - {f"d{row}"}


def test_columns_with_a_text_that_is_not_utf_8_are_not_accepted():
    columns = {"document_id": pa.array(["a", "b"]), "filename": pa.array(["a", "b"])}
    now = datetime.now(UTC)
    assert check_columns(columns, 2, now) is not None
    assert check_columns({**columns, "bucket": unchecked_texts([b"a", b"\xff"])}, 2, now) is None


def test_a_revision_of_parquet_whose_text_is_not_utf_8_is_a_bad_row(open_store):
    rows = [{**revision(1, "put"), "filename": "a.txt"}, {**revision(2), "filename": "a.txt"}]
    table = pa.Table.from_pylist(rows)
    file = io.BytesIO()
    names = unchecked_texts([b"a.txt", b"\xff"])
    pq.write_table(table.set_column(table.schema.get_field_index("filename"), "filename", names), file)
    assert "line 2: field 'filename' is not UTF-8" in str(refuse(open_store("store"), file.getvalue(), "parquet").cause)


def test_a_file_without_any_text_in_utf_8_has_bad_rows_only(open_store):
    file = io.BytesIO()
    pq.write_table(pa.table({"filename": unchecked_texts([b"\xff", b"\xfe"])}), file)
    error = refuse(open_store("store"), file.getvalue(), "parquet")
    assert "2 of 2 rows are bad" in error.message


def test_attributes_of_parquet_that_are_binary_are_looked_at(open_store):
    content = parquet([{"document_id": "a", "filename": "a", "attributes": b"no JSON"}])
    assert "attributes" in str(refuse(open_store("store"), content, "parquet").cause)


def test_parts_of_a_number_are_not_dropped(open_store):
    rows = [{"filename": "x", "size_bytes": 12.5}]
    assert "field 'size_bytes' is invalid" in str(refuse(open_store("store"), parquet(rows), "parquet").cause)


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(open_store):
    store = open_store("store")
    assert load(store, b"\xef\xbb\xbffilename,bucket\r\na,b\r\n", "csv").created == 1
    assert load(store, b'\xef\xbb\xbf{"filename": "c"}\r\n', "ndjson").created == 1
    assert {d["filename"]: d["bucket"] for d in store.list_metadata()} == {"a": "b", "c": None}


def test_a_name_tells_the_format():
    assert [format_of(f"a.B/{name}") for name in ("x.CSV", "x.jsonl", "x.parquet")] == ["csv", "ndjson", "parquet"]
    with pytest.raises(UsageError, match="does not tell the format"):
        format_of("documents.xlsx")


@pytest.mark.slow
@every_format
def test_many_rows_take_bounded_memory(open_store, form: Format):
    """Arrow's own memory; the batches of an import are small against the whole."""
    store = open_store("large", with_columns=False)
    created = datetime(2020, 1, 1, tzinfo=UTC)
    rows = [{"filename": f"f{n}", "tags": {"a": "x" * 100}, "created_at": created.isoformat()} for n in range(20_000)]
    load(store, rows)
    file = io.BytesIO()
    before = pa.total_allocated_bytes()
    peaks: list[int] = []
    export_documents(store, file, form, progress=lambda _: peaks.append(pa.total_allocated_bytes() - before))
    load(store, file.getvalue(), form, progress=lambda *_: peaks.append(pa.total_allocated_bytes() - before))
    assert max(peaks) < 25 << 20


def test_columns_are_read_in_their_types():
    text = "filename,pages,note,is_signed,score\na,1,1,TRUE,1\n"
    columns = {name: Column(name, kind) for name, kind in COLUMNS.items()}  # type: ignore[arg-type]
    (row,) = [row for batch in read_rows(io.BytesIO(text.encode()), "csv", columns) for row in batch.rows]
    assert row == {"filename": "a", "pages": 1, "note": "1", "is_signed": True, "score": 1.0}


def test_a_conflict_in_the_middle_says_how_far_the_import_came(open_store):
    store = open_store("store")

    def conflict(*_: Any) -> Any:
        raise ConflictError("the store has another revision 1 of document 'a'", hint="…")

    store.load_table = conflict  # type: ignore[method-assign]
    with pytest.raises(ConflictError, match="0 documents were imported before, and a repeated import goes on"):
        load(store, [{"filename": "a"}])


_LONG = "é" * 600
_FIELDS: dict[str, list[Any]] = {
    "document_id": [None, "", "a b", "-a", "a" * 255, "a" * 256, "é", "a\n", 7],
    "filename": [None, "", "  ", "\u3000", "名前", "a\tb", "a\x7f", "x" * 1024, "x" * 1025, _LONG, 5, "\ud800"],
    "content_type": [None, "", "text/plain", "text/plain; charset=utf-8", "text", "text/plain\n", "é/é", 1],
    "size_bytes": [None, 0, -1, 2**63 - 1, 2**63, 1.0, "12", "0x1f", True],
    "checksum": [None, "md5:abc", "md5:", "MD5:a", "md5:abc\n", "x"],
    "provider": [None, "aws", "AWS", "a" * 64, ""],
    "bucket": [None, "", "a\x00b", _LONG],
    "object_key": [None, "a/b/ü", "a\rb", _LONG],
    "storage_tier": [None, "archive", "cold", "", 3],
    "restore_status": [None, "none", "requested", "restored", "done"],
    "restore_requested_at": [None, "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"],
    "restore_expiry": [None, "2999-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"],
    "created_at": [
        None, "2020-02-30T00:00:00Z", "2020-01-01", "2020-01-01T00:00:00.123456Z", "2020-01-01T00:00:00.1234567Z",
        "2020-01-01T00:00:00+02:00", "2999-01-01T00:00:00Z", 1577836800, 1577836800000, "1577836800", "soon",
    ],
    "updated_at": ["never mind", None],
    "revision": [17, "x"],
    "tags": [
        None, {}, {"a": None}, {"a": "b", "c": "ü"}, {"": "x"}, {" ": "x"}, {"a": "x\ny"}, {"a": 1}, {"k" * 257: "v"},
        {f"k{n}": "v" for n in range(257)}, {"k": "v" * 257}, ["a"], "a", '{"a": "b"}', "{", "null",
    ],
    "attributes": [
        None, {}, {"a": None}, {"a": {"b": None}}, {"a": [1, 2.5, True]}, {"a": 2**64}, {"a": "x" * 70_000}, [1],
        '{"a": 1}', "[1]", "{", "null", '{"a": NaN}', '{"a": 1e400}', '{"a": 123456789012345678901234567890}',
        {"a": "\x01" * 20_000}, '{"a": ' + "[" * 70 + "]" * 70 + "}", {"a": "\ud800"},
    ],
    "operation": ["put"],
    "unknown": [1],
}  # fmt: skip


@pytest.mark.parametrize("form", ["ndjson", "csv", "parquet"])
def test_rows_are_judged_alike_by_column_and_one_by_one(form: Format):
    now = datetime(2026, 11, 19, tzinfo=UTC)
    by_column = 0
    for name, values in _FIELDS.items():
        for value in values:
            rows = [
                {"document_id": f"d-{n}", "filename": f"{n}.pdf", "tags": {"n": str(n)}, "attributes": {"n": n}}
                for n in range(30)
            ]
            for row in rows[3::10]:
                row["storage_tier"] = "archive"
            for row in rows[3:9]:
                row[name] = value
            for batch in _batches_of(rows, form):
                made, bad = check_documents(batch, {}, now)
                alone, bad_alone = checks._check_each(batch.lines, batch.rows, {}, now)
                assert made.equals(alone), f"{name} = {value!r:.80}"
                assert bad == bad_alone, f"{name} = {value!r:.80}"
                given = batch.columns()
                by_column += given is not None and check_columns(given, len(batch.lines), now) is not None
    assert by_column > 40, "most rows do not need the check one by one"


def _batches_of(rows: list[dict[str, Any]], form: Format) -> list[Any]:
    if form == "ndjson":
        return [Rows(range(1, len(rows) + 1), rows)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        if form == "csv":
            text = io.StringIO()
            writer = csv.DictWriter(text, names)
            writer.writeheader()
            for row in rows:
                writer.writerow({k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()})
            made = io.BytesIO(text.getvalue().encode())
        else:
            made = io.BytesIO()
            pq.write_table(pa.table({name: _parquet_column(name, rows) for name in names}), made)
        return list(read_rows(made, form, {}))
    except (pa.ArrowException, TypeError, ValueError, OverflowError, UsageError):  # this form cannot have it
        return []


def _parquet_column(name: str, rows: list[dict[str, Any]]) -> pa.Array:
    values = [row.get(name) for row in rows]
    if name == "tags" and all(isinstance(value, dict | None) for value in values):
        return pa.array([None if value is None else list(value.items()) for value in values], TAGS)
    if name == "attributes":
        return pa.array([value if isinstance(value, str | None) else json.dumps(value) for value in values])
    return pa.array(values)


def test_a_tag_that_stands_twice_in_a_map_of_parquet_is_read_as_one_by_one():
    tags = pa.array([[("a", "1"), ("a", "2")], [("a", "1"), ("b", "2")], []], TAGS)
    made = io.BytesIO()
    pq.write_table(pa.table({"document_id": ["x", "y", "z"], "filename": ["f"] * 3, "tags": tags}), made)
    (batch,) = read_rows(made, "parquet", {})
    found, bad = check_documents(batch, {}, datetime.now(UTC))
    assert not bad
    assert found["tags"].to_pylist() == [[("a", "2")], [("a", "1"), ("b", "2")], []]
