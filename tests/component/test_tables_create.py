"""Tables are there when needed, and learn columns while they are written."""

from __future__ import annotations

import re
import threading

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType

from frazil.errors import UsageError
from frazil.tables import SchemaMismatchError, ensure_table, evolve_schema, parse_partition_spec, parse_sort_order
from frazil.tables.create import assign_field_ids
from tests.tables import (
    SCHEMA,
    Wrapped,
    append,
    applied_but_lost,
    embedded,
    lost_on_the_way,
    make_table,
    offsets_in,
    open_store,
)

NAME = "topics.clicks"


@pytest.fixture
def settings(tmp_path):
    return embedded(tmp_path / "home")


@pytest.fixture
def store(settings):
    with open_store(settings) as opened:
        yield opened


def columns(*fields) -> pa.Schema:
    return pa.schema(list(fields))


def test_a_table_is_made_with_its_namespace_and_found_again(store):
    table = ensure_table(store, "deep.er.clicks", SCHEMA, partition=["day(publish_time)"], properties={"owner": "me"})
    assert table.metadata.format_version == 2
    assert str(table.spec().fields[0]) == "1000: publish_time_day: day(2)"
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert table.properties["owner"] == "me"
    again = ensure_table(store, ("deep", "er", "clicks"), SCHEMA)
    assert again.metadata.table_uuid == table.metadata.table_uuid


def test_all_who_make_a_table_at_once_get_the_same_one(settings):
    found, errors = [], []
    start = threading.Barrier(6)

    def make() -> None:
        with open_store(settings) as store:
            start.wait()
            try:
                found.append(make_table(store, "race.clicks").metadata.table_uuid)
            except Exception as error:  # noqa: BLE001 - any is a failure of the test
                errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert len(found) == 6
    assert len(set(found)) == 1


def test_partitions_and_orders_are_read_from_text():
    schema = assign_field_ids(SCHEMA)
    spec = parse_partition_spec(schema, ["day(publish_time)", "bucket(16, offset)", "payload"])
    assert [f.name for f in spec.fields] == ["publish_time_day", "offset_bucket", "payload"]
    order = parse_sort_order(schema, ["offset desc", "hours(publish_time)"])
    assert [str(f) for f in order.fields] == ["1 DESC NULLS LAST", "hour(2) ASC NULLS FIRST"]


@pytest.mark.parametrize(
    ("term", "told"),
    [
        ("day(nothing)", "the table has offset"),
        ("day(payload)", "string"),
        ("week(publish_time)", "not a transform"),
        ("bucket(offset)", "not a transform"),
        ("day(", "not a transform"),
    ],
)
def test_a_wrong_term_says_what_there_is(term, told):
    with pytest.raises(UsageError) as wrong:
        parse_partition_spec(assign_field_ids(SCHEMA), [term])
    assert told in f"{wrong.value.message} {wrong.value.cause}"


def test_missing_columns_are_added_optional_and_old_rows_stay_readable(store):
    table = append(store, make_table(store, NAME), 3).table
    table = evolve_schema(store, table, columns(pa.field("note", pa.string(), nullable=False), ("size", pa.int32())))
    assert not table.schema().find_field("note").required
    assert table.current_snapshot().snapshot_id == store.load(NAME).current_snapshot().snapshot_id
    assert table.scan().to_arrow()["note"].to_pylist() == [None] * 3
    assert offsets_in(append(store, table, 3).table) == list(range(6))


def test_nothing_missing_is_no_commit(store):
    table = make_table(store, NAME)
    assert evolve_schema(store, table, columns(("offset", pa.int64()), ("payload", pa.large_string()))) is table


def test_a_narrower_type_fits_and_a_wider_one_must_be_asked_for(store):
    table = evolve_schema(store, make_table(store, NAME), columns(("size", pa.int32()), ("ratio", pa.float32())))
    assert evolve_schema(store, table, columns(("offset", pa.int32()))) is table
    with pytest.raises(SchemaMismatchError, match="'size' is long, but int in the table"):
        evolve_schema(store, table, columns(("size", pa.int64())))
    table = evolve_schema(store, table, columns(("size", pa.int64()), ("ratio", pa.float64())), widen=True)
    assert table.schema().find_field("size").field_type == LongType()


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (pa.string(), "string"),
        (pa.list_(pa.int64()), "list<long>"),
        (pa.map_(pa.string(), pa.int64()), "map<string, long>"),
        (pa.binary(), "binary"),
    ],
)
def test_another_type_is_refused_with_the_column_and_both_types(store, kind, shown):
    with pytest.raises(SchemaMismatchError) as wrong:
        evolve_schema(store, make_table(store, NAME), columns(("offset", kind)), widen=True)
    assert f"'offset' is {shown}, but long in the table" in wrong.value.message


def test_string_and_binary_are_not_taken_for_each_other(store):
    with pytest.raises(SchemaMismatchError, match="'payload' is binary, but string"):
        evolve_schema(store, make_table(store, NAME), columns(("payload", pa.binary())), widen=True)


@pytest.mark.parametrize("kind", [pa.uint64(), pa.uint32(), pa.list_(pa.uint64()), pa.timestamp("ns"), pa.null()])
def test_a_type_that_iceberg_has_not_is_refused(store, kind):
    with pytest.raises(SchemaMismatchError, match=f"'big' is {re.escape(str(kind))}"):
        evolve_schema(store, make_table(store, NAME), columns(("big", kind)))


def test_a_name_that_differs_by_case_alone_is_refused(store):
    with pytest.raises(SchemaMismatchError, match="only in case"):
        evolve_schema(store, make_table(store, NAME), columns(("Offset", pa.int64())))


def test_structs_learn_fields_too(store):
    table = evolve_schema(store, make_table(store, NAME), columns(("where", pa.struct([("city", pa.string())]))))
    table = evolve_schema(store, table, columns(("where", pa.struct([("city", pa.string()), ("zip", pa.int32())]))))
    assert table.schema().find_field("where.zip").field_type == IntegerType()
    with pytest.raises(SchemaMismatchError, match=r"'where\.zip' is string, but int"):
        evolve_schema(store, table, columns(("where", pa.struct([("zip", pa.string())]))))


def test_columns_may_be_given_as_icebergs_too(store):
    wanted = Schema(
        NestedField(7, "note", StringType()), NestedField(8, "s", StructType(NestedField(9, "a", LongType())))
    )
    table = evolve_schema(store, make_table(store, NAME), wanted)
    assert table.schema().find_field("s.a").field_type == LongType()
    assert table.schema().find_field("offset").field_id == 1


def test_two_who_add_columns_at_once_both_have_theirs(store):
    stale = make_table(store, NAME)
    evolve_schema(store, stale, columns(("a", pa.string()), ("both", pa.int64())))
    table = evolve_schema(store, stale, columns(("b", pa.string()), ("both", pa.int64())))
    names = table.schema().column_names
    assert names[-3:] == ["a", "both", "b"]
    assert len({f.field_id for f in table.schema().fields}) == len(names)


def test_two_who_add_one_column_with_two_types_do_not_both_get_it(store):
    stale = make_table(store, NAME)
    evolve_schema(store, stale, columns(("a", pa.string())))
    with pytest.raises(SchemaMismatchError):
        evolve_schema(store, stale, columns(("a", pa.int64())))


@pytest.mark.parametrize("trouble", [applied_but_lost, lost_on_the_way])
def test_a_lost_reply_adds_a_column_once(store, trouble):
    table = make_table(store, NAME)
    store.catalog = Wrapped(store.catalog, [trouble])
    table = evolve_schema(store, table, columns(("a", pa.string())))
    assert table.schema().column_names[-1] == "a"
    assert len(table.metadata.schemas) == 2
