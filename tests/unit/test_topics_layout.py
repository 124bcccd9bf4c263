"""How topics' tables are laid out, and how rows are put into them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import BucketTransform, DayTransform, HourTransform, IdentityTransform

from frazil.errors import UsageError
from frazil.log.columns import MESSAGE
from frazil.tables.writing import data_files as parquet
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.type_conversion import convert_rows
from frazil.topics.dead_letters.json_values import from_plain, to_plain
from frazil.topics.layout import table_schema
from tests.sink_kit import SinkKit, sink_kit

TOPIC = "orders"


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[SinkKit]:
    with sink_kit(tmp_path) as made:
        made.create(TOPIC)
        yield made


def test_a_table_is_made_on_first_use_by_day_and_by_offset_with_a_word_on_each_column(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"a", amount=pa.array([1]))
    kit.engine(TOPIC).catch_up()
    table = kit.table(TOPIC)
    assert [f.name for f in table.schema().fields] == [*MESSAGE.names, "amount"]
    assert [(type(f.transform), f.name) for f in table.spec().fields] == [(DayTransform, "publish_time_day")]
    offset = table.schema().find_field("offset")
    assert [(f.source_id, type(f.transform)) for f in table.sort_order().fields] == [
        (offset.field_id, IdentityTransform)
    ]
    assert all(f.doc for f in table.schema().fields if f.name in MESSAGE.names)
    assert [f.name for f in table.schema().fields if f.required] == [f.name for f in MESSAGE if not f.nullable]


def test_files_carry_field_ids_bounds_and_the_order_they_have(kit: SinkKit) -> None:
    kit.publish(TOPIC, b"a", b"b")
    kit.engine(TOPIC).catch_up()
    table = kit.table(TOPIC)
    [file] = kit.files(TOPIC)
    for f in pq.read_schema(file):
        assert int(f.metadata[b"PARQUET:field_id"]) == table.schema().find_field(f.name).field_id
    [data_file] = [t.file for t in table.scan().plan_files()]
    offset, time = (table.schema().find_field(n).field_id for n in ("offset", "publish_time"))
    assert data_file.lower_bounds[offset] == (0).to_bytes(8, "little")
    assert data_file.upper_bounds[offset] == (1).to_bytes(8, "little")
    assert time in data_file.lower_bounds
    assert data_file.sort_order_id == table.sort_order().order_id
    assert data_file.file_size_in_bytes == file.stat().st_size
    assert data_file.record_count == 2


@pytest.mark.parametrize(
    ("setting", "written"),
    [("zstd", "ZSTD"), ("snappy", "SNAPPY"), ("gzip", "GZIP"), ("lz4", "LZ4"), ("uncompressed", "UNCOMPRESSED")],
)
def test_the_compression_is_the_one_of_the_settings(tmp_path: Path, setting: str, written: str) -> None:
    with sink_kit(tmp_path, **{"topics.compression": setting}) as kit:
        kit.create(TOPIC)
        kit.publish(TOPIC, b"a" * 1000)
        kit.engine(TOPIC).catch_up()
        [file] = kit.files(TOPIC)
        assert pq.read_metadata(file).row_group(0).column(6).compression == written
        kit.check(TOPIC)


def test_rows_go_into_their_partitions_whatever_the_terms_are(tmp_path: Path) -> None:
    terms = ["hour(publish_time)", "bucket(4, region)", "truncate(1, kind)", "level"]
    with sink_kit(tmp_path, {"partition": terms}) as kit:
        kit.create(TOPIC)
        n = 200
        kit.publish(
            TOPIC,
            *(f"{i}".encode() for i in range(n)),
            region=pa.array([None if i % 7 == 0 else f"region {i % 10}" for i in range(n)]),
            kind=pa.array([("alpha", "beta", "bread")[i % 3] for i in range(n)]),
            level=pa.array([i % 2 for i in range(n)], pa.int32()),
        )
        kit.engine(TOPIC).catch_up()
        table = kit.table(TOPIC)
        assert [type(f.transform) for f in table.spec().fields][:2] == [HourTransform, BucketTransform]
        kit.check(TOPIC)
        assert {r["kind"] for r in _where(kit, "kind = 'beta' and level = 1")} == {"beta"}
        expected = [i for i in range(n) if i % 7 and i % 10 == 3 and i % 2 == 1]
        assert [r["offset"] for r in _where(kit, "region = 'region 3' and level = 1")] == expected
        assert len(_where(kit, "region is null")) == len([i for i in range(n) if i % 7 == 0])
        for task in table.scan().plan_files():
            offsets = pq.read_table(task.file.file_path.removeprefix("file://"), columns=["offset"])["offset"]
            assert offsets.to_pylist() == sorted(offsets.to_pylist())


def _where(kit: SinkKit, text: str) -> list[dict[str, Any]]:
    return sorted(kit.table(TOPIC).scan(row_filter=text).to_arrow().to_pylist(), key=lambda r: r["offset"])


def test_rows_are_sorted_inside_a_file_by_the_order_of_the_settings(tmp_path: Path) -> None:
    with sink_kit(tmp_path, {"sort": ["region desc", "offset"], "partition": []}) as kit:
        kit.create(TOPIC)
        kit.publish(TOPIC, b"0", b"1", b"2", b"3", b"4", region=pa.array(["b", None, "c", "b", "a"]))
        kit.engine(TOPIC).catch_up()
        [file] = kit.files(TOPIC)
        written = pq.read_table(file, columns=["region", "offset"]).to_pylist()
        assert [(r["region"], r["offset"]) for r in written] == [("c", 2), ("b", 0), ("b", 3), ("a", 4), (None, 1)]
        kit.check(TOPIC)


@pytest.mark.parametrize("term", ["week(publish_time)", "day(when)", "day(payload)", "bucket(publish_time)"])
def test_a_wrong_partition_is_refused_with_what_is_possible(tmp_path: Path, term: str) -> None:
    with sink_kit(tmp_path, {"partition": [term]}) as kit:
        kit.create(TOPIC)
        kit.publish(TOPIC, b"a")
        with pytest.raises(UsageError) as caught:
            kit.engine(TOPIC).catch_up()
        told = f"{caught.value.message} {caught.value.cause} {caught.value.hint}"
        assert "day" in told
        assert "publish_time" in told or "bucket(N, column)" in told


def test_row_groups_and_files_are_bounded(kit: SinkKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 100_000)
    monkeypatch.setattr(parquet, "FILE_BYTES", 400_000)
    kit.publish(TOPIC, b"a")
    kit.engine(TOPIC).catch_up()
    writer = TableWriter(WriteTarget.of(kit.table(TOPIC)), "x")
    message = kit.table(TOPIC).scan().to_arrow()
    rows = convert_rows(pa.concat_tables([message] * 500), writer.schema).rows
    payloads = pa.chunked_array([pa.array([b"p" * 1000] * rows.num_rows, pa.large_binary())])
    rows = rows.set_column(rows.schema.get_field_index("payload"), writer.schema.field("payload"), payloads)
    for _ in range(2):
        writer.add(rows)
    files = writer.finish()
    assert len(files) == 2
    groups = pq.read_metadata(files[0].file_path.removeprefix("file://"))
    assert groups.num_row_groups >= 4
    writer.abandon()
    assert not Path(files[0].file_path.removeprefix("file://")).exists()


def test_many_partitions_at_once_keep_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MAX_OPEN", 4)
    with sink_kit(tmp_path, {"partition": ["level"]}) as kit:
        kit.create(TOPIC)
        kit.publish(TOPIC, *(b"x" for _ in range(60)), level=pa.array([i % 20 for i in range(60)]))
        kit.engine(TOPIC).catch_up()
        kit.check(TOPIC)


# -- rows into types ---------------------------------------------------------------------------------------------------


def test_all_columns_of_messages_have_a_word_of_their_own() -> None:
    assert all(f.metadata[b"doc"] for f in table_schema(pa.schema([])))


def test_values_that_fit_are_cast_and_columns_that_lack_are_null() -> None:
    rows = pa.table({"a": pa.array([1, 2], pa.int32())})
    fitted = convert_rows(rows, pa.schema([("a", pa.int64()), ("b", pa.string())]))
    assert not fitted.rejected
    assert fitted.rows.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": None}]


def test_only_the_rows_that_do_not_fit_are_told_apart() -> None:
    values: list[Any] = [str(i) for i in range(1000)]
    values[17], values[500], values[999] = "seventeen", None, "x"
    fitted = convert_rows(pa.table({"a": values}), pa.schema([("a", pa.int64())]))
    assert [m.row for m in fitted.rejected] == [17, 999]
    assert {m.reason for m in fitted.rejected} == {"type"}
    assert fitted.rows["a"].to_pylist() == [
        None if v is None else int(v) for v in values if v not in ("seventeen", "x")
    ]


def test_a_value_without_a_column_and_a_null_where_none_may_be_do_not_fit() -> None:
    rows = pa.table({"a": pa.array([1, None, 3]), "gone": pa.array([None, None, "x"])})
    fitted = convert_rows(rows, pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    assert [(m.row, m.reason) for m in fitted.rejected] == [(1, "null"), (2, "column")]
    assert fitted.rows["a"].to_pylist() == [1]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"\x00\xff", pa.binary()),
        (1.5, pa.float64()),
        (float("inf"), pa.float64()),
        (Decimal("12.30"), pa.decimal128(9, 2)),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC), pa.timestamp("us", tz="UTC")),
        (datetime.date(2026, 1, 2), pa.date32()),
        ({"x": 1, "y": [b"a", None]}, pa.struct([("x", pa.int64()), ("y", pa.list_(pa.binary()))])),
        ([("k", 1.0)], pa.map_(pa.string(), pa.float64())),
        (True, pa.bool_()),
    ],
)
def test_a_value_kept_as_json_comes_back_as_it_was(value: Any, kind: pa.DataType) -> None:
    import json

    [arrow] = pa.array([value], kind).to_pylist()
    back = from_plain(json.loads(json.dumps(to_plain(arrow))), kind)
    assert pa.array([back], kind).to_pylist() == [arrow]
