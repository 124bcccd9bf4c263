"""The documented queries on DuckDB: what they find, held against plain Python; and `frazil content views`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.cli.run import run_command
from frazil.content.coalesced import Source
from frazil.content.columns import JOURNAL, OBJECTS
from frazil.content.views import ABOUT, CONTENT, CURRENT, FOUND, NAMES, Queries
from frazil.errors import UsageError
from frazil.query import run_sql
from tests.content_kit import NOON, Content, a_change, an_object, at

TIME = NOON.replace(tzinfo=None)
#: S3 Metadata's journal: the first 21 columns of ours.
S3_METADATA = pa.schema(list(JOURNAL)[:21])
INVENTORY = pa.schema([f for f in S3_METADATA if f.name not in (
    "record_type", "record_timestamp", "requester", "source_ip_address", "request_id",
)])  # fmt: skip


def answer(name: str, schema: pa.Schema, changes: Iterable[dict[str, Any]], objects=(), **options: Any):
    """What a query finds in DuckDB's own tables."""
    rows = {"journal": (schema, changes), "objects": (OBJECTS, objects)}
    with in_duckdb({n: pa.Table.from_pylist(list(r), schema=s) for n, (s, r) in rows.items()}) as connection:
        queries = Queries("content.objects", Source("content.journal", schema.names), **options)
        return connection.sql(queries.text(name)).to_arrow_table().to_pylist()


@contextmanager
def in_duckdb(tables: dict[str, pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Tables as DuckDB has them for `frazil sql`."""
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("CREATE SCHEMA content")
        for name, table in tables.items():
            connection.register(f"made_{name}", table)
            connection.execute(f"CREATE VIEW content.{name} AS SELECT * FROM made_{name}")
        yield connection


def coalesced(
    schema: pa.Schema, changes: Iterable[dict[str, Any]], **options: Any
) -> dict[tuple[str, str | None], Any]:
    found = answer("s3_metadata_coalesced", schema, changes, **options)
    by_version = {(row["key"], row["version_id"]): row for row in found}
    assert len(by_version) == len(found)
    return by_version


def theirs(*args: Any, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in a_change(*args, **more).items() if name in S3_METADATA.names}


# -- s3_metadata_coalesced over a real journal -------------------------------------------------------------------------


def test_the_tip_of_each_stack_counts():
    found = coalesced(
        S3_METADATA,
        [
            theirs("a", "02", e_tag="new"), theirs("a", "01", e_tag="old"), theirs("a", "02", e_tag="new"),
            theirs("gone", "01"), theirs("gone", "02", "DELETE", is_delete_marker=None),
            theirs("back", "02", "DELETE", is_delete_marker=None), theirs("back", "03"), theirs("back", "01"),
            theirs("tie", "01"), theirs("tie", "01", "DELETE", is_delete_marker=None),
        ],
    )  # fmt: skip
    assert {key for key, _ in found} == {"a", "back"}
    assert found["a", None]["e_tag"] == "new"
    assert all(row["is_latest_version"] for row in found.values())


def test_null_empty_and_absent_versions_are_one():
    found = coalesced(
        S3_METADATA,
        [theirs("a", "01", version_id=""), theirs("a", "02", version_id="null"), theirs("a", "03", e_tag="last")],
    )
    assert found.keys() == {("a", None)}
    assert found["a", None]["e_tag"] == "last"


def test_the_latest_version_is_the_one_that_came_last_not_the_one_tagged_last():
    found = coalesced(
        S3_METADATA,
        [
            theirs("a", "01", version_id="v1"),
            theirs("a", "02", version_id="v2"),
            theirs("a", "03", "UPDATE_METADATA", version_id="v1"),
        ],
    )
    assert {version: row["is_latest_version"] for (_, version), row in found.items()} == {"v1": False, "v2": True}
    assert found["a", "v1"]["record_type"] == "UPDATE_METADATA"


def test_below_a_delete_marker_no_version_is_the_latest():
    marker = theirs("a", "02", "DELETE", version_id="m", is_delete_marker=True)
    changes = [theirs("a", "01", version_id="v1"), marker]
    found = coalesced(S3_METADATA, changes)
    assert {k: row["is_latest_version"] for k, row in found.items()} == {("a", "v1"): False}
    shown = coalesced(S3_METADATA, changes, tombstones=True)
    assert {k: row["is_latest_version"] for k, row in shown.items()} == {("a", "v1"): False, ("a", "m"): True}
    removed = [*changes, theirs("a", "03", "DELETE", version_id="m", is_delete_marker=None)]
    assert coalesced(S3_METADATA, removed)["a", "v1"]["is_latest_version"] is True
    with_tombstone = coalesced(S3_METADATA, removed, tombstones=True)
    assert with_tombstone["a", "m"]["is_latest_version"] is False
    assert with_tombstone["a", "v1"]["is_latest_version"] is True


def test_columns_that_we_do_not_know_are_kept():
    schema = pa.schema([*S3_METADATA, pa.field("Odd Name", pa.string()), pa.field("offset", pa.int64())])
    found = coalesced(schema, [theirs("a", "01") | {"Odd Name": "x", "offset": 5}])
    assert found["a", None]["Odd Name"] == "x"
    assert list(found["a", None]) == [*schema.names, "is_latest_version"]


KNOWN = """
WITH cte AS (SELECT * FROM content.journal),
version_stacks AS (
    SELECT *, LEAD(sequence_number, 1) OVER (
        PARTITION BY (bucket, key, version_id) ORDER BY sequence_number ASC) AS next_sequence_number
    FROM cte),
latest_versions AS (SELECT * FROM version_stacks WHERE next_sequence_number IS NULL),
extant_versions AS (SELECT * FROM latest_versions WHERE record_type != 'DELETE')
SELECT *, sequence_number = (MAX(sequence_number) OVER (PARTITION BY (bucket, key))) AS is_latest_version
FROM extant_versions"""

changes_of_a_few_keys = st.lists(
    st.builds(
        lambda key, number, kind, version: theirs(
            key, f"{number:04x}", kind, version_id=version, e_tag=f"{key}{number}", size=number,
            is_delete_marker=None if kind == "DELETE" else False,
        ),
        st.sampled_from("ab"), st.integers(0, 12), st.sampled_from(["CREATE", "CREATE", "DELETE"]),
        st.sampled_from([None, "v1", "v2"]),
    ),
    max_size=25,
    unique_by=lambda row: (row["key"], row["sequence_number"]),
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(changes_of_a_few_keys)
def test_it_finds_what_the_query_finds_that_people_know(changes):
    found = coalesced(S3_METADATA, changes)
    with in_duckdb({"journal": pa.Table.from_pylist(changes, schema=S3_METADATA)}) as connection:
        known = connection.sql(KNOWN).to_arrow_table().drop_columns(["next_sequence_number"]).to_pylist()
    assert found == {(row["key"], row["version_id"]): row for row in known}


# -- inventories -------------------------------------------------------------------------------------------------------


def test_a_live_inventory_is_known_by_its_columns():
    rows = [
        theirs("a", "01", version_id="v1", last_modified_date=TIME),
        theirs("a", "02", version_id="v2", last_modified_date=TIME + timedelta(seconds=1)),
        theirs("b", "05", version_id="v1", last_modified_date=TIME),
        theirs("b", "06", version_id="m", is_delete_marker=True, last_modified_date=TIME + timedelta(seconds=1)),
        theirs("c", "01"),
    ]
    found = coalesced(INVENTORY, [{n: row[n] for n in INVENTORY.names} for row in rows])
    assert {k: row["is_latest_version"] for k, row in found.items()} == {
        ("a", "v1"): False, ("a", "v2"): True, ("b", "v1"): False, ("c", None): True,
    }  # fmt: skip
    assert ("b", "m") in coalesced(INVENTORY, [{n: row[n] for n in INVENTORY.names} for row in rows], tombstones=True)


def test_an_s3_inventory_says_itself_what_is_latest():
    columns = [("bucket", pa.string()), ("key", pa.string()), ("e_tag", pa.string()), ("version_id", pa.string())]
    schema = pa.schema([*columns, ("is_latest", pa.bool_()), ("is_delete_marker", pa.bool_())])
    row = {"bucket": "b", "key": "a", "e_tag": "e", "is_delete_marker": False}
    found = coalesced(
        schema, [{**row, "version_id": "v1", "is_latest": False}, {**row, "version_id": "v2", "is_latest": True}]
    )
    assert {k: row["is_latest_version"] for k, row in found.items()} == {("a", "v1"): False, ("a", "v2"): True}
    plain = pa.schema(columns[:3])
    assert answer("s3_metadata_coalesced", plain, [{"bucket": "b", "key": "a", "e_tag": "e"}]) == [
        {"bucket": "b", "key": "a", "e_tag": "e", "is_latest_version": True}
    ]


@pytest.mark.parametrize("columns", [["id", "name"], ["bucket", "key", "record_type", "e_tag"]])
def test_other_tables_are_refused(columns):
    with pytest.raises(UsageError, match="no journal and no inventory"):
        Source("demo.photos", columns)


# -- s3_metadata_coalesced over our journal ----------------------------------------------------------------------------


def seen(key: str, second: int, record_type: str = "CREATE", **more: Any) -> dict[str, Any]:
    time = TIME + timedelta(seconds=second)
    return a_change(key, f"!{second:020d}", record_type, dialect="observed", record_timestamp=time, **more)


def told(key: str, sequence: str, second: int, record_type: str = "CREATE", **more: Any) -> dict[str, Any]:
    return a_change(key, sequence, record_type, record_timestamp=TIME + timedelta(seconds=second), **more)


def numbered(changes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "offset": number} for number, row in enumerate(changes)]


def test_what_was_seen_counts_from_its_time_on():
    found = coalesced(
        JOURNAL,
        numbered(
            [
                told("deleted behind our back", "0A", 1), seen("deleted behind our back", 2, "DELETE"),
                told("put after the look", "0A", 3), seen("put after the look", 2, "DELETE"),
                seen("only seen", 1, e_tag="x"), seen("only seen", 2, e_tag="y"),
                told("overwritten", "0A", 1, e_tag="x"), seen("overwritten", 5, e_tag="y"),
            ]
        ),
    )  # fmt: skip
    assert {key for key, _ in found} == {"put after the look", "only seen", "overwritten"}
    assert found["only seen", None]["e_tag"] == "y"
    assert found["overwritten", None]["e_tag"] == "y"


def test_what_a_later_event_does_not_tell_is_as_it_was():
    more = {"size": 5, "e_tag": "x", "last_modified_date": TIME, "user_metadata": [("by", "me")]}
    update = {"storage_class": "GLACIER", "last_modified_date": TIME + timedelta(seconds=9)}
    for first in (told("a", "01", 1, **more), seen("a", 1, **more)):
        changes = [
            told("a", "00", 0, "DELETE", size=99),
            first,
            told("a", "02", 2, "UPDATE_METADATA", **update),
            told("a", "03", 3, "UPDATE_METADATA", storage_class=None),
        ]
        if first["dialect"] == "observed":
            changes = changes[1:]
        found = coalesced(JOURNAL, numbered(changes))["a", None]
        assert (found["record_type"], found["sequence_number"]) == ("UPDATE_METADATA", "03")
        assert (found["size"], found["e_tag"], found["last_modified_date"]) == (5, "x", TIME)
        assert found["user_metadata"] == [("by", "me")]


def test_a_transition_is_known_after_a_tag():
    changes = [
        told("a", "01", 1, storage_class="STANDARD", size=5),
        told("a", "02", 2, "UPDATE_METADATA", storage_class="GLACIER"),
        told("a", "03", 3, "UPDATE_METADATA"),
        told("again", "01", 1, storage_class="STANDARD"),
        told("again", "02", 2, "UPDATE_METADATA", storage_class="GLACIER"),
        told("again", "03", 3, storage_class=None),
        told("again", "04", 4, "UPDATE_METADATA"),
    ]
    found = coalesced(JOURNAL, numbered(changes))
    assert found["a", None]["storage_class"] == "GLACIER"
    assert found["again", None]["storage_class"] is None, "the class of an object that was overwritten"


def test_a_version_that_was_tagged_and_deleted_within_one_second_is_gone():
    """EventBridge has whole seconds, and no sequencer for tags."""
    tagged = {"record_timestamp": TIME + timedelta(seconds=5), "event_name": "Object Tags Added"}
    changes = [
        told("a", "01", 1, version_id="v1"),
        told("a", "0A", 5, version_id="v2"),
        a_change("a", f"!{5:020d}", "UPDATE_METADATA", version_id="v2", **tagged),
        told("a", "0B", 5, "DELETE", version_id="v2", is_delete_marker=None),
    ]
    for delivered in (changes, changes[::-1]):
        found = coalesced(JOURNAL, numbered(delivered))
        assert {version: row["is_latest_version"] for (_, version), row in found.items()} == {"v1": True}


def test_versions_that_were_only_seen_are_ordered_by_time():
    def last_modified(second: int) -> dict[str, Any]:
        return {"last_modified_date": TIME + timedelta(seconds=second)}

    found = coalesced(
        JOURNAL,
        numbered(
            [
                seen("a", 50, version_id="v1", **last_modified(1)),
                seen("a", 40, version_id="v2", **last_modified(2)),
                told("a", "0A", 3, version_id="v3", **last_modified(3)),
            ]
        ),
    )
    assert {version: row["is_latest_version"] for (_, version), row in found.items()} == {
        "v1": False, "v2": False, "v3": True,
    }  # fmt: skip


def test_sequences_order_versions_also_if_one_that_was_only_seen_is_gone():
    late, early = {"last_modified_date": TIME + timedelta(seconds=9)}, {"last_modified_date": TIME}
    versions = [told("a", "01", 1, version_id="v1", **late), told("a", "02", 2, version_id="v2", **early)]
    gone = seen("a", 3, "DELETE", version_id="v0", is_delete_marker=None)
    found = coalesced(JOURNAL, numbered([*versions, gone]))
    assert [version for (_, version), row in found.items() if row["is_latest_version"]] == ["v2"]
    there = coalesced(JOURNAL, numbered([*versions, seen("a", 3, version_id="v0", **early)]))
    assert [version for (_, version), row in there.items() if row["is_latest_version"]] == ["v1"]


def in_python(changes: list[dict[str, Any]]) -> dict[tuple[str, str | None], dict[str, Any]]:
    """The same in plain words: the last event by sequence, or a look at the same time or later."""

    def version(row: dict[str, Any]) -> tuple[str, str]:
        return row["key"], "" if row["version_id"] in (None, "null") else row["version_id"]

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        kind = ["CREATE", "UPDATE_METADATA", "DELETE"].index(row["record_type"])
        return row["sequence_number"], kind, row["record_timestamp"], row["offset"]

    tips = []
    for name, rows in groupby(sorted(changes, key=version), key=version):
        stack = sorted(rows, key=place)
        looks = [row for row in stack if row["sequence_number"].startswith("!")]
        events = [row for row in stack if not row["sequence_number"].startswith("!")]
        last = (events or looks)[-1]
        at_once = [row for row in looks if row["record_timestamp"] == last["record_timestamp"]]
        # A tag does not bring back what was deleted in the same moment.
        before = [row for row in at_once if (row["record_type"], last["record_type"]) == ("UPDATE_METADATA", "DELETE")]
        ordered = [
            *(row for row in looks if row["record_timestamp"] < last["record_timestamp"]),
            *before,
            *events,
            *(row for row in at_once if row not in before),
            *(row for row in looks if row["record_timestamp"] > last["record_timestamp"]),
        ]
        begun, storage_class = ordered[0], None
        for row in ordered:
            if row["record_type"] != "UPDATE_METADATA":
                begun, storage_class = row, None
            storage_class = row["storage_class"] or storage_class
        tip = {**ordered[-1], "storage_class": storage_class}
        for column in ("size", "e_tag", "last_modified_date"):
            tip[column] = begun[column] if begun[column] is not None else tip[column]
        came = [row["sequence_number"] for row in events if row["record_type"] != "UPDATE_METADATA"]
        tip["version_id"] = name[1] or None
        tips.append({"tip": tip, "came": max(came, default=""), "gone": tip["record_type"] == "DELETE"})
    found = {}
    for tip in tips:
        others = [t for t in tips if t["tip"]["key"] == tip["tip"]["key"] and not t["gone"]]
        by_time = any(not t["came"] for t in others)

        def rank(t: dict[str, Any], by_time: bool = by_time) -> tuple[Any, ...]:
            row = t["tip"]
            time = (row["last_modified_date"] or row["record_timestamp"]) if by_time else None
            return (*([time] if by_time else []), t["came"], row["sequence_number"], row["version_id"] or "")

        if not tip["gone"]:
            latest = max(others, key=rank) is tip
            found[tip["tip"]["key"], tip["tip"]["version_id"]] = {**tip["tip"], "is_latest_version": latest}
    return found


changes_of_ours = st.lists(
    st.builds(
        lambda key, number, kind, version, second, is_seen, size, kept: (seen if is_seen else told)(
            key, *((second,) if is_seen else (f"{number:04x}", second)), kind, version_id=version, size=size,
            storage_class=kept,
            e_tag=None if size is None else f"e{size}",
            last_modified_date=None if size is None else TIME + timedelta(seconds=size),
            is_delete_marker=None if kind == "DELETE" else False,
        ),
        st.sampled_from("ab"), st.integers(0, 9), st.sampled_from(["CREATE", "CREATE", "UPDATE_METADATA", "DELETE"]),
        st.sampled_from([None, "", "null", "v1", "v2"]), st.integers(0, 9), st.booleans(),
        st.none() | st.integers(0, 9), st.sampled_from([None, None, "STANDARD", "GLACIER"]),
    ),
    max_size=25,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(changes_of_ours.map(numbered))
def test_it_is_right_about_our_journal(changes):
    assert coalesced(JOURNAL, changes) == in_python(changes)


# -- the others --------------------------------------------------------------------------------------------------------

OBJECTS_OF_ALL_KINDS = [
    an_object("a", metadata='{"exif": {"Model": "X"}}', labels=["Bird"], image_width=4, image_height=3, etag="ea"),
    an_object("versioned", version_id="v1", is_latest=False, etag="same", last_modified=at(1)),
    an_object("versioned", version_id="v2", etag="same", labels=["Pond"], metadata="{}"),
    an_object("gone", is_latest=False, is_deleted=True),
    an_object("marked", version_id="m", is_delete_marker=True),
]


def names(rows: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted((row["key"], row["version_id"]) for row in rows)


def test_current_objects():
    found = answer("current_objects", JOURNAL, [], OBJECTS_OF_ALL_KINDS)
    assert names(found) == [("a", ""), ("versioned", "v2")]
    assert list(found[0]) == list(CURRENT)
    assert set(OBJECTS.names) - set(CURRENT) == {"frazil_order", "frazil_fields", "check_after"}
    shown = answer("current_objects", JOURNAL, [], OBJECTS_OF_ALL_KINDS, tombstones=True)
    assert names(shown) == [("a", ""), ("gone", ""), ("marked", "m"), ("versioned", "v2")]


def test_content_metadata_has_the_columns_of_the_sample():
    found = answer("s3_content_metadata", JOURNAL, [], OBJECTS_OF_ALL_KINDS)
    assert list(found[0]) == list(CONTENT) == [
        "bucket", "key", "version_id", "sequencer", "etag", "metadata", "last_modified", "labels", "image_width",
        "image_height",
    ]  # fmt: skip
    assert names(found) == [("a", ""), ("versioned", "v1"), ("versioned", "v2")]
    shown = answer("s3_content_metadata", JOURNAL, [], OBJECTS_OF_ALL_KINDS, tombstones=True)
    assert {row["key"] for row in shown if row["is_deleted"]} == {"gone"}


def test_the_join_finds_content_by_etag_and_doubles_nothing():
    changes = numbered(
        [
            a_change("a", "01", e_tag="ea"),
            a_change("overwritten", "01", e_tag="newer"),
            a_change("versioned", "01", version_id="v1", e_tag="same"),
            a_change("versioned", "02", version_id="v2", e_tag="same"),
            a_change("no etag", "01"),
        ]
    )
    objects = [*OBJECTS_OF_ALL_KINDS, an_object("overwritten", etag="older", labels=["Cat"])]
    found = answer("objects_with_content", JOURNAL, changes, objects)
    assert list(found[0]) == [*JOURNAL.names, "is_latest_version", *FOUND]
    assert sorted((row["key"], row["version_id"] or "", row["labels"] and row["labels"][0]) for row in found) == [
        ("a", "", "Bird"), ("no etag", "", None), ("overwritten", "", None), ("versioned", "v1", "Pond"),
        ("versioned", "v2", "Pond"),
    ]  # fmt: skip


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, capfd):
    def command(*args: str, code: int = 0) -> str:
        capfd.readouterr()
        got = run_command("content", "content", ["views", *args, "--set", f"home={tmp_path}"])
        out, errors = capfd.readouterr()
        assert got == code, errors
        return out if code == 0 else errors

    yield command
    structlog.reset_defaults()


def test_the_queries_are_listed(run):
    assert json.loads(run("--output", "json")) == [{"name": name, "about": ABOUT[name]} for name in NAMES]
    assert not any("'" in about for about in ABOUT.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_printed_text_runs_as_it_is(run, tmp_path, name):
    content = Content.at(tmp_path)
    content.add_objects(OBJECTS_OF_ALL_KINDS)
    content.add_changes([a_change("a", "01", e_tag="ea")])
    for options in ([], ["--tombstones"]):
        text = run("--sql", name, *options)
        assert ("Tombstones" in text) == (not options)
        result = run_sql(text, content.settings)
        assert result.engine == "duckdb"
        assert result.table.num_rows > 0
    printed = json.loads(run("--sql", name, "--dialect", "spark", "--output", "json"))
    assert printed["name"] == name and printed["dialect"] == "spark" and '"' not in printed["sql"]


def test_another_journal_is_taken_by_its_columns(run, tmp_path):
    content = Content.at(tmp_path)
    content.store.catalog.create_namespace("aws")
    made = content.store.catalog.create_table("aws.my_journal", pa.schema([*S3_METADATA, ("more", pa.string())]))
    made.append(
        pa.Table.from_pylist([theirs("a", "01", e_tag="e")], schema=pa.schema([*S3_METADATA, ("more", pa.string())]))
    )
    text = run("--sql", "s3_metadata_coalesced", "--journal", "aws.my_journal")
    (row,) = run_sql(text, content.settings).table.to_pylist()
    assert (row["key"], row["more"], row["is_latest_version"]) == ("a", None, True)
    assert "no table" in run("--sql", "s3_metadata_coalesced", "--journal", "aws.other", code=10)


def test_what_cannot_be_done_is_refused(run, tmp_path):
    assert "current_objects" in run("--sql", "nothing", code=2)
    assert "give one of them" in run("--sql", "current_objects", "--create", code=2)
    assert "frazil content scan" in run("--create", code=10)
    settings = ["--set", "catalog.kind=sql"]
    assert run(*settings)
