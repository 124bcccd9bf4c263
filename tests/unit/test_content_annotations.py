"""Notes about rows: results of extraction, edits of people, and what is carried from row to row."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pyarrow as pa
import pytest

from frazil.content.annotations.apply import apply_notes, with_fields
from frazil.content.annotations.messages import Annotation, edit, extraction, fields
from frazil.content.annotations.standard_columns import SOURCES, standard_columns
from frazil.content.columns import BASE, EXTRACTED, OBJECTS, USERS
from frazil.content.events import parse_message
from frazil.content.fields import Fields, FieldSpec

NOW = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
NONE = Fields()


def result(**given: Any) -> dict[str, Any]:
    """A result about `a` with etag e1."""
    state = {"version": "1", "status": "ok", "reason": None, "data": {"width": 3, "height": 2}}
    return {"key": "a", "version_id": "", "etag": "e1", "extractors": {"image": state}, **given}


def notes(*payloads: bytes) -> list[Annotation]:
    found = []
    for payload in payloads:
        parsed = parse_message(payload, internal=True)
        assert not parsed.problems, parsed.problems
        found += parsed.notes
    return found


def row(**given: Any) -> dict[str, Any]:
    common = {"bucket": "b", "key": "a", "version_id": "", "etag": "e1", "is_latest": True, "is_deleted": False}
    return {**common, "is_delete_marker": False, "changed_at": NOW, "extraction_status": "pending", **given}


def table(*rows: dict[str, Any], custom: Fields = NONE) -> pa.Table:
    return pa.Table.from_pylist(list(rows), pa.schema([*OBJECTS, *custom.columns()]))


def applied(before: dict[str, Any], *payloads: bytes, custom: Fields = NONE) -> dict[str, Any] | None:
    """The row as the notes make it; None where they change nothing."""
    told = notes(*payloads)
    rows, touched = apply_notes(table(before, custom=custom), told, [0] * len(told), custom)
    assert rows.schema.names == [*OBJECTS.names, *custom.own_names]
    return rows.to_pylist()[0] if touched[0] else None


def of(*results: dict[str, Any]) -> bytes:
    return extraction("b", results, NOW)


def test_a_result_fills_the_row() -> None:
    found = applied(row(), of(result()))
    assert found is not None
    assert (found["image_width"], found["image_height"], found["extraction_status"]) == (3, 2, "ok")
    assert json.loads(found["metadata"]) == {"image": {"width": 3, "height": 2}}
    assert found["extraction"] == [("image", {"version": "1", "status": "ok", "reason": None, "at": NOW})]


def test_two_results_are_one_document_and_one_failure_is_only_its_own() -> None:
    bad = {"pdf": {"version": "2", "status": "failed", "reason": "cut off", "data": None}}
    found = applied(row(), of(result()), of(result(extractors=bad)))
    assert found is not None
    assert json.loads(found["metadata"]) == {"image": {"width": 3, "height": 2}}
    assert found["extraction_status"] == "failed"
    assert dict(found["extraction"])["pdf"]["reason"] == "cut off"
    again = applied(found, of(result(extractors={"pdf": {"version": "3", "status": "ok", "data": {"page_count": 7}}})))
    assert again is not None
    assert (again["extraction_status"], again["page_count"], again["image_width"]) == ("ok", 7, 3)


def test_what_failed_keeps_what_was_found_before_and_what_is_unsupported_does_not() -> None:
    first = applied(row(), of(result()))
    assert first is not None
    for status, width in (("failed", 3), ("gone", 3), ("changed", 3), ("unsupported", None)):
        found = applied(first, of(result(extractors={"image": {"version": "2", "status": status, "reason": "x"}})))
        assert found is not None
        assert found["image_width"] == width
        assert found["extraction_status"] == ("ok" if status == "unsupported" else "failed")


@pytest.mark.parametrize(
    ("before", "given"),
    [
        ({}, {"etag": "e2"}),
        ({}, {"etag": None}),
        ({"etag": None}, {"etag": "e1"}),
        ({"etag": None, "last_modified": NOW}, {"etag": None, "last_modified": NOW - datetime.timedelta(seconds=1)}),
        ({"frazil_order": {"created": "2/x"}}, {"created": "1/x"}),
        ({"is_deleted": True}, {}),
        ({"is_delete_marker": True}, {}),
        ({"extraction_status": "erased"}, {}),
    ],
)
def test_a_result_of_another_content_changes_nothing(before: dict[str, Any], given: dict[str, Any]) -> None:
    assert applied(row(**before), of(result(**given))) is None


@pytest.mark.parametrize(
    ("before", "given"),
    [
        ({"etag": None, "last_modified": NOW}, {"etag": None, "last_modified": NOW}),
        ({"frazil_order": {"created": "2/x"}}, {"created": "2/x"}),
        # An event for what a look had found: the same content, and now with a sequence.
        ({"frazil_order": {"created": "2/x"}}, {}),
        ({}, {"created": "2/x"}),
    ],
)
def test_a_result_of_the_same_content_counts(before: dict[str, Any], given: dict[str, Any]) -> None:
    assert applied(row(**before), of(result(**given))) is not None


def said(**given: Any) -> bytes:
    return edit("b", [{"key": "a", "version_id": "", **given}], NOW)


def test_people_tag_note_and_rate_and_extraction_leaves_it_alone() -> None:
    found = applied(
        row(), said(add=["sea", "boat", "sea"], note="by the pier", rating=4), of(result()), said(remove=["boat"])
    )
    assert found is not None
    assert (found["user_tags"], found["note"], found["rating"]) == (["sea"], "by the pier", 4)
    assert found["image_width"] == 3
    cleared = applied(found, said(set=["x", "y"], note=None, rating=None))
    assert cleared is not None
    assert (cleared["user_tags"], cleared["note"], cleared["rating"]) == (["x", "y"], None, None)
    assert applied(found, said(remove=["sea"]))["user_tags"] is None  # type: ignore[index]


def test_what_is_erased_stays_so() -> None:
    custom = Fields((FieldSpec.of("wide", "INTEGER", "$.image.width"),))
    found = applied(row(), of(result()), said(note="secret"), custom=custom)
    assert found is not None
    assert found["wide"] == 3
    gone = applied(found, said(erase=True), of(result()), custom=custom)
    assert gone is not None
    names = [*(f.name for f in (*EXTRACTED, *USERS)), "wide"]
    assert {name: gone[name] for name in names if gone[name] is not None} == {"extraction_status": "erased"}
    assert applied(row(is_deleted=True, note="x"), said(erase=True))["extraction_status"] is None  # type: ignore[index]


def test_custom_columns_come_from_all_that_was_found() -> None:
    custom = Fields(
        (
            FieldSpec.of("area_name", "STRING", "$.place.name"),
            FieldSpec.of("wide", "LONG", "$.image.width"),
            FieldSpec.of("labels", "ARRAY<STRING>", "$.mine[*]"),
        )
    )
    place = {"place": {"version": "1", "status": "ok", "data": {"name": "pier"}}}
    found = applied(row(), of(result()), of(result(extractors=place)), custom=custom)
    assert found is not None
    assert (found["wide"], found["area_name"], found["labels"], found["field_errors"]) == (3, "pier", None, None)
    assert found["frazil_fields"] == custom.marks
    wrong = applied(
        found, of(result(extractors={"image": {"version": "2", "status": "ok", "data": {"width": "x"}}})), custom=custom
    )
    assert wrong is not None
    assert wrong["wide"] is None
    assert "x" in dict(wrong["field_errors"])["wide"]


def test_without_the_raw_document_each_result_adds_what_it_knows() -> None:
    custom = Fields((FieldSpec.of("wide", "INTEGER", "$.image.width"),), include_raw_metadata=False)
    pages = {"pdf": {"version": "1", "status": "ok", "data": {"page_count": 7}}}
    found = applied(row(), of(result()), of(result(extractors=pages)), custom=custom)
    assert found is not None
    assert found["metadata"] is None
    assert (found["wide"], found["image_width"], found["page_count"]) == (3, 3, 7)
    again = with_fields(table(found, custom=custom), custom).to_pylist()[0]
    assert again["wide"] == 3


def test_fields_are_computed_again_and_others_left() -> None:
    first = Fields((FieldSpec.of("wide", "INTEGER", "$.image.width"), FieldSpec.of("high", "STRING", "$.image.height")))
    found = applied(row(), of(result()), custom=first)
    assert found is not None
    found["high"] = "left alone"
    other = Fields((FieldSpec.of("wide", "INTEGER", "$.image.nothing"), first.fields[1]))
    again = with_fields(table(found, custom=first), other.only(["wide"])).to_pylist()[0]
    assert (again["wide"], again["high"]) == (None, "left alone")
    assert sorted(again["frazil_fields"]) == sorted(other.marks)


def test_notes_about_nothing_and_rows_without_notes() -> None:
    rows, touched = apply_notes(
        table(row(), row(key="b")), notes(of(result(), result(key="b", etag="?"))), [-1, 1], NONE
    )
    assert touched.tolist() == [False, False]
    assert rows.equals(table(row(), row(key="b")))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"frazil": "extraction", "version": 2}, "version"),
        (
            {"frazil": "extraction", "version": 1, "bucket": "", "at": "2026-01-01", "results": []},
            "no_bucket",
        ),
        ({"frazil": "extraction", "version": 1, "bucket": "b", "at": "soon", "results": []}, "bad_time"),
        ({"frazil": "extraction", "version": 1, "bucket": "b", "at": "2026-01-01T00:00:00Z"}, "not_an_event"),
        ({"frazil": "fields", "version": 1, "fields": {}}, "not_an_event"),
    ],
)
def test_a_message_that_is_not_understood_has_its_reason(message: dict[str, Any], reason: str) -> None:
    parsed = parse_message(json.dumps(message).encode(), internal=True)
    assert [problem.reason for problem in parsed.problems] == [reason]
    assert not parsed.notes


def test_one_bad_entry_among_good_ones() -> None:
    entries = [result(), {**result(), "key": ""}, {**result(), "extractors": {"x": {"status": "well"}}}, 7]
    parsed = parse_message(json.dumps({**json.loads(of()), "results": entries}).encode(), internal=True)
    assert [(p.index, p.reason) for p in parsed.problems] == [(1, "no_key"), (2, "not_an_event"), (3, "not_an_event")]
    assert len(parsed.notes) == 1
    edits = [
        {"key": "a", "rating": 9},
        {"key": "a", "add": "x"},
        {"key": "a", "note": 3},
        {"key": "a", "note": "\ud800"},
    ]
    whole = json.dumps({**json.loads(edit("b", [], NOW)), "edits": edits}).encode()
    assert [p.reason for p in parse_message(whole, internal=True).problems] == [
        "bad_number",
        "bad_text",
        "bad_text",
        "bad_text",
    ]


@pytest.mark.parametrize("status", [["ok"], {}, None, 7])
def test_a_status_that_is_none_is_told(status: Any) -> None:
    odd = {"image": {"version": "1", "status": status}}
    whole = json.dumps({**json.loads(of()), "results": [result(extractors=odd)]}).encode()
    assert [p.reason for p in parse_message(whole, internal=True).problems] == ["not_an_event"]


@pytest.mark.parametrize(
    ("kind", "jpath"),
    [("ARRAY<" * 600 + "INT" + ">" * 600, "$.a"), ("INT", "$[?@.a==1e999999]"), ("INT", f"$[?@.a=={'9' * 5000}]")],
)
def test_a_field_that_cannot_be_is_refused_and_no_more(kind: str, jpath: str) -> None:
    order = {"cast": "lenient", "include_raw_metadata": True, "fields": [{"name": "n", "type": kind, "jpath": jpath}]}
    with pytest.raises(ValueError, match=r"array|JSONPath"):
        Fields.parse(order)


@pytest.mark.parametrize("name", ["_file", "_pos", "_deleted", "_x"])
def test_names_of_iceberg_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name of a column"):
        FieldSpec.of(name, "INT", "$.a")


def test_orders_are_handed_on() -> None:
    order = fields(
        [{"name": "n", "type": "INT", "jpath": "$.n"}], cast="strict", include_raw_metadata=True, backfill=["n"]
    )
    (found,) = parse_message(order, internal=True).orders
    assert found["backfill"] == ["n"]
    assert Fields.parse(found).names == ["n"]


def test_each_standard_column_is_found_where_it_is_said_to_be() -> None:
    texts = dict.fromkeys(("detected_type", "camera", "title", "author", "language", "content_hash"), "text")
    values: dict[str, Any] = {
        **texts, "image_width": 4, "image_height": 3, "page_count": 9, "duration": 1.5, "latitude": -48.5,
        "longitude": 2.25, "taken_at": "2024-05-01T12:34:56", "perceptual_hash": "ffffffffffffffff",
    }  # fmt: skip
    for name, paths in SOURCES.items():
        pair = {"latitude": "longitude", "longitude": "latitude"}.get(name)
        for path in paths:
            extractor, _, key = path.partition(".")
            document = {extractor: {key: values[name], **({pair: values[pair]} if pair else {})}}
            expected = {"taken_at": datetime.datetime(2024, 5, 1, 12, 34, 56), "perceptual_hash": -1}.get(
                name, values[name]
            )
            assert standard_columns(document)[name] == expected, path
    assert {f.name for f in EXTRACTED} >= set(standard_columns({}))
    assert not any(standard_columns({}).values())


def test_values_that_cannot_be_are_none() -> None:
    odd = {
        "image": {"width": -1, "height": 2**40, "taken_at": "yesterday", "latitude": 400, "longitude": 3, "title": " "},
        "video": {"width": "7", "duration": float("nan"), "taken_at": 5, "latitude": True},
        "picture": {"perceptual": "zzzzzzzzzzzzzzzz"}, "labels": [{"Name": 3}, "cat", None], "pdf": [1],
        "rekognition": 5,
    }  # fmt: skip
    assert not {name: value for name, value in standard_columns(odd).items() if value is not None}


def test_labels_of_both_sources_surest_first() -> None:
    document = {
        "labels": [{"Name": "tabby", "Confidence": 60}, {"Name": "cat", "Confidence": 90}],
        "rekognition": {"Labels": [{"Name": "Animal", "Confidence": 99}, {"Name": "cat", "Confidence": 80}]},
    }
    assert standard_columns(document)["labels"] == ["Animal", "cat", "tabby"]


def test_base_and_the_other_columns_are_all() -> None:
    assert {*BASE.names, *(f.name for f in (*EXTRACTED, *USERS))} == set(OBJECTS.names)


def test_an_erasure_takes_what_was_found_in_its_own_content_only() -> None:
    """New content came under the key meanwhile: what people entered goes, and what was found in the new one stays."""
    found = applied(row(etag="e2"), of(result(etag="e2")), said(note="secret", add=["x"]))
    assert found is not None
    later = applied(found, said(erase=True, etag="e1"))
    assert later is not None
    assert (later["note"], later["user_tags"], later["image_width"]) == (None, None, 3)
    assert later["extraction_status"] == found["extraction_status"] != "erased"
