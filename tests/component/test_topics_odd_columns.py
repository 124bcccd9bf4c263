"""No message stops a topic: its columns are refused at the edge, or they end in the table or in the dead letters."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight

from frazil.api.reading import as_json, read_page
from frazil.errors import FrazilError, UsageError
from frazil.log.batch import Batch
from frazil.log.columns import MESSAGE
from frazil.log.messages import message_schema
from frazil.log.remote.wire import unpack_error
from frazil.query.duck import DuckQuery
from frazil.tables.writing import data_files as parquet
from frazil.topics.dead_letters.json_values import python_values
from frazil.topics.reading.reader import TopicReader
from frazil.topics.sinks import isolation
from frazil.topics.storage import IcebergStorage
from tests.odd_columns import append_unchecked, odd_batch, sent_values
from tests.sink_kit import SinkKit, sink_kit

TIME = pa.timestamp("us", "UTC")
YEAR_50000 = 1_515_680_380_800_000_000
BEFORE_YEAR_1 = -63_549_314_998_500_000


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkKit]:
    with sink_kit(tmp_path_factory.mktemp("odd")) as made:
        yield made


def new_topic(kit: SinkKit) -> str:
    name = f"t{uuid.uuid4().hex[:12]}"
    kit.create(name)
    return name


def batch_of(name: str, column: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([b"odd"] * len(column), pa.binary()), column], names=["payload", name])


def deep(kind: pa.DataType, levels: int) -> pa.DataType:
    return kind if not levels else pa.list_(deep(kind, levels - 1))


def twice(*names: str) -> pa.Array:
    return pa.StructArray.from_arrays([pa.array([n]) for n in range(len(names))], list(names))


#: What a log of an older Frazil may hold: name, column, and a part of the reason for which it is refused today.
TAKEN_BEFORE = {
    "a time after the year 9999": ("at", pa.array([YEAR_50000], TIME), "years 1 to 9999"),
    "a time before the year 1": ("at", pa.array([BEFORE_YEAR_1], pa.timestamp("us")), "years 1 to 9999"),
    "a date after the year 9999": ("on", pa.array([5_000_000], pa.int32()).cast(pa.date32()), "years 1 to 9999"),
    "a time deep inside": ("own", pa.array([{"at": [0, YEAR_50000]}], pa.struct([("at", pa.list_(TIME))])), "9999"),
    "a time in a map": ("own", pa.array([[("k", BEFORE_YEAR_1)]], pa.map_(pa.string(), TIME)), "years 1 to 9999"),
    "a field that is there twice": ("own", twice("a", "a"), "twice"),
    "fields that differ by case": ("own", twice("a", "A"), "case alone"),
    "a negative scale": ("own", pa.array([Decimal(12000)], pa.decimal128(5, -3)), "scale"),
    "the name of a partition": ("publish_time_day", pa.array([1]), "partition"),
    "a field without a name": ("own", twice(""), "no name of a field"),
    "a name for two fields": (
        "own",
        pa.array([{"a.b": 1, "a": {"b": 2}}], pa.struct([("a.b", pa.int64()), ("a", pa.struct([("b", pa.int64())]))])),
        "may mean two",
    ),
    "a map with lists as keys": ("own", pa.array([[([1], 2)]], pa.map_(pa.list_(pa.int64()), pa.int64())), "key"),
    "many levels": ("own", pa.array([[]], deep(pa.int32(), 40)), "deep"),
} | {
    f"the name {name}": (name, pa.array([1]), "reserved")
    for name in (
        *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"),
        *("_change_type", "_change_ordinal", "_commit_snapshot_id"),
    )
}


def put(kit: SinkKit, topic: str, batch: pa.RecordBatch) -> dict[str, Any]:
    """As any Flight client does it: DoPut.

    Raises:
        FrazilError: as the broker gave it.
    """
    with flight.connect(kit.client.address) as client:
        writer, reader = client.do_put(flight.FlightDescriptor.for_path(topic), batch.schema)
        try:
            with writer:
                writer.write_batch(batch)
                writer.done_writing()
                return dict(json.loads(reader.read().to_pybytes()))
        except flight.FlightError as error:
            raise unpack_error(error.extra_info) from error


@pytest.mark.parametrize("case", TAKEN_BEFORE)
def test_a_column_that_no_table_can_hold_is_refused_over_flight_with_name_reason_and_hint(kit: SinkKit, case: str):
    name, column, reason = TAKEN_BEFORE[case]
    topic = "refusals"
    if topic not in {info.name for info in kit.log.topics()}:
        kit.create(topic)
    with pytest.raises(UsageError) as refused:
        put(kit, topic, batch_of(name, column))
    told = refused.value
    assert name in told.message and told.hint
    assert reason in f"{told.message} {told.cause}"
    assert kit.log.info(topic).written == 0


def test_text_that_is_no_utf8_and_too_many_digits_are_refused_with_the_name_of_the_column(kit: SinkKit):
    topic = new_topic(kit)
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])
    digits = pa.Array.from_buffers(pa.decimal128(3, 0), 1, [None, pa.py_buffer((10**9).to_bytes(16, "little"))])
    for column in (text, digits, text.view(pa.string())):
        with pytest.raises(UsageError, match="column 'own' has values"):
            put(kit, topic, batch_of("own", column))
    put(kit, topic, batch_of("own", pa.array(["fine"])))


# -- what a log holds already ------------------------------------------------------------------------------------------


def drain(kit: SinkKit, topic: str) -> None:
    """Takes turns until the table has all; a batch may fail as often as it is tried before it is isolated."""
    engine, end = kit.engine(topic), kit.log.info(topic).written
    for _ in range(isolation.TRIES + 2):
        try:
            engine.catch_up(end)
            return
        except FrazilError:
            continue
    engine.catch_up(end)


#: Values of columns, by name and offset.
Values = dict[str, dict[int, Any]]


def check_topic(
    kit: SinkKit, topic: str, payloads: list[bytes], values: Values | None = None
) -> tuple[list[int], list[int]]:
    """Every message is in table or dead letters, once, and every reader reads; the offsets of both.

    Where `values` is given, columns are read with these values, and as null in all other messages.
    """
    in_table = [row["offset"] for row in kit.rows(topic)]
    dead = [row["offset"] for row in kit.dead(topic)]
    assert sorted(in_table + dead) == list(range(len(payloads)))
    check_engines(kit, topic, len(in_table))
    from_log = pa.concat_tables(TopicReader(kit.client, topic, first="log").read(0))
    replayed = pa.concat_tables(IcebergStorage(kit.client, topic, kit.settings, kit.tables).read(0))
    view = kit.log.info(topic).view
    for found in (from_log, replayed):
        assert found.column("payload").to_pylist() == payloads
    for name in message_schema(view).names:
        if name not in MESSAGE.names:
            assert repr(python_values(replayed[name])) == repr(python_values(from_log[name])), name
            if values is not None:
                sent = values.pop(name)
                for offset, value in enumerate(python_values(from_log[name])):
                    assert is_same(value, sent.get(offset)), (name, offset)
    assert not values, "columns that were taken and are not read"
    for reader in (
        TopicReader(kit.client, topic, first="log"),
        IcebergStorage(kit.client, topic, kit.settings, kit.tables).reader,
    ):
        page = read_page(reader, 0, 1000, 1 << 20)
        assert len(json.loads(as_json(page, topic, "text"))["messages"]) == len(payloads)
    return in_table, dead


def is_same(found: Any, sent: Any) -> bool:
    """Whether values are equal; not a number equals itself here, and zeros differ by their signs."""
    if isinstance(found, dict) and isinstance(sent, dict):
        return list(found) == list(sent) and all(is_same(found[name], sent[name]) for name in found)
    if isinstance(found, (list, tuple)) and isinstance(sent, (list, tuple)):
        return len(found) == len(sent) and all(map(is_same, found, sent))
    if isinstance(found, float) and isinstance(sent, float):
        return repr(found) == repr(sent)
    return type(found) is type(sent) and bool(found == sent)


def check_engines(kit: SinkKit, topic: str, rows: int) -> None:
    """PyIceberg and DuckDB can load the whole table."""
    assert kit.table(topic).scan().to_arrow().num_rows == rows
    name = f"{kit.settings.model.topics.namespace}.{topic}"
    found = DuckQuery.parse(f"SELECT * FROM {name}", kit.settings.catalog(), kit.settings.model.network).run(None)
    assert found.num_rows == rows


def test_what_an_older_log_holds_becomes_dead_letters_and_the_next_message_arrives(kit: SinkKit):
    topic = new_topic(kit)
    kit.publish(topic, b"before")
    drain(kit, topic)
    for number, (name, column, _) in enumerate(TAKEN_BEFORE.values()):
        own = f"own_{number}" if name in ("own", "at", "on") else name
        assert append_unchecked(kit, topic, batch_of(own, column)) is not None
    kit.publish(topic, b"after", fine=pa.array([1]))
    drain(kit, topic)
    odd = len(TAKEN_BEFORE)
    in_table, dead = check_topic(kit, topic, [b"before", *[b"odd"] * odd, b"after"])
    assert (in_table, dead) == ([0, odd + 1], list(range(1, odd + 1)))


def test_a_time_that_python_does_not_have_is_read_as_text(kit: SinkKit):
    topic = new_topic(kit)
    append_unchecked(kit, topic, batch_of("at", pa.array([YEAR_50000, BEFORE_YEAR_1, 0], TIME)))
    append_unchecked(kit, topic, batch_of("twins", twice("a", "a")))
    page = read_page(TopicReader(kit.client, topic, first="log"), 0, 10, 1 << 20)
    columns = [message["columns"] for message in json.loads(as_json(page, topic, "text"))["messages"]]
    assert columns == [
        {"at": "+50000-01-01T00:00:00.000000+00:00"},
        {"at": "-0044-03-15T12:30:01.500000+00:00"},
        {"at": "1970-01-01T00:00:00Z"},
        {"twins": [["a", 0], ["a", 1]]},
    ]


# -- what nobody has thought of ----------------------------------------------------------------------------------------


def poison(monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]) -> None:
    """Files with a payload that begins with 'poison' cannot be written."""
    write = pq.ParquetWriter.write_table

    def failing(writer: pq.ParquetWriter, table: pa.Table, **options: Any) -> None:
        if "error" not in table.column_names and any(p.startswith(b"poison") for p in table["payload"].to_pylist()):
            raise error()
        write(writer, table, **options)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", failing)


def test_messages_that_cannot_be_written_are_found_one_by_one_and_the_others_arrive(
    kit: SinkKit, monkeypatch: pytest.MonkeyPatch
):
    topic = new_topic(kit)
    kit.publish(topic, *(b"poison" if n in (3, 64, 99) else b"%d" % n for n in range(100)), number=pa.array(range(100)))
    kit.publish(topic, b"good", b"poison", b"good")
    poison(monkeypatch, lambda: ValueError("no such value"))
    engine = kit.engine(topic)
    for _ in range(isolation.TRIES):
        with pytest.raises(FrazilError, match="could not be written"):
            engine.catch_up()
    engine.catch_up()
    kit.check(topic, dead=[3, 64, 99, 101])
    assert {(letter["reason"], "ValueError: no such value" in letter["error"]) for letter in kit.dead(topic)} == {
        ("unwritable", True)
    }
    kit.publish(topic, b"next")
    engine.catch_up()
    kit.check(topic, dead=[3, 64, 99, 101])


@pytest.mark.parametrize("error", [OSError("storage is away"), MemoryError(), ImportError("no module")])
def test_an_outage_makes_no_dead_letters_however_often_a_batch_fails(
    kit: SinkKit, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    topic = new_topic(kit)
    kit.publish(topic, b"poison", b"b")
    with monkeypatch.context() as broken:
        poison(broken, lambda: error)
        engine = kit.engine(topic)
        for _ in range(2 * isolation.TRIES):
            with pytest.raises(FrazilError):
                engine.catch_up()
    engine.catch_up()
    kit.check(topic)


def test_where_no_message_at_all_can_be_written_none_becomes_a_dead_letter(
    kit: SinkKit, monkeypatch: pytest.MonkeyPatch
):
    topic = new_topic(kit)
    kit.publish(topic, b"a", b"b")
    engine = kit.engine(topic)
    with monkeypatch.context() as broken:
        broken.setattr(parquet, "_statistics", lambda *_: {}["a worker of another version"])
        for _ in range(2 * isolation.TRIES):
            with pytest.raises(FrazilError):
                engine.catch_up()
    engine.catch_up()
    kit.check(topic)


def test_text_without_an_upper_bound_is_written_and_keeps_the_bounds_of_other_columns(kit: SinkKit):
    """After U+D7FF comes no character, so that PyIceberg computes a bound that has no UTF-8 form."""
    topic = new_topic(kit)
    kit.publish(topic, b"a", text=pa.array(["a" * 15 + "\ud7ff" + "b"]), number=pa.array([7]))
    kit.engine(topic).catch_up()
    kit.check(topic)
    (task,) = kit.table(topic).scan().plan_files()
    ids = {name: kit.table(topic).schema().find_field(name).field_id for name in ("text", "number", "offset")}
    assert {name for name, number in ids.items() if number in task.file.upper_bounds} == {"number", "offset"}


# -- any column --------------------------------------------------------------------------------------------------------


def publish_odd(kit: SinkKit, topic: str, batch: pa.RecordBatch, *, unchecked: bool) -> list[bytes]:
    """The payloads of those that were taken: all, or none with a clear reason."""
    payloads: list[bytes] = batch.column(0).to_pylist()
    if unchecked:
        return payloads if append_unchecked(kit, topic, batch) is not None else []
    try:
        kit.append(topic, Batch.of_arrow(batch))
    except UsageError as refused:
        assert "column" in refused.message and refused.hint
        return []
    return payloads


def check_any_columns(kit: SinkKit, seed: int, *, unchecked: bool) -> str:
    """Sends some odd batches, and a good message after each."""
    random, topic, payloads = Random(seed), new_topic(kit), list[bytes]()
    values: Values = defaultdict(dict)
    for number in range(3):
        batch = odd_batch(random, f"m-{number}")
        if taken := publish_odd(kit, topic, batch, unchecked=unchecked):
            for name, column in zip(batch.schema.names[1:], batch.columns[1:], strict=True):
                values[name].update(enumerate(sent_values(column), len(payloads)))
        payloads += taken
        kit.publish(topic, good := f"good {number}".encode())
        payloads.append(good)
        if random.random() < 0.5:
            drain(kit, topic)
    drain(kit, topic)
    _, dead = check_topic(kit, topic, payloads, values)
    assert not any(payloads[offset].startswith(b"good") for offset in dead)
    assert unchecked or not dead
    return topic


ANY = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=6, derandomize=True, **ANY)
@given(seed=st.integers(0, 2**32), unchecked=st.booleans())
def test_any_column_is_refused_clearly_or_ends_in_table_or_dead_letters_and_is_replayed(
    kit: SinkKit, seed: int, unchecked: bool
):
    check_any_columns(kit, seed, unchecked=unchecked)


@pytest.mark.deep
@pytest.mark.long("hundreds of random schemas, each through log, table, dead letters and replay")
@pytest.mark.timeout(1800)
@settings(max_examples=400, **ANY)  # many: each combination of types, names and values is its own case
@given(seed=st.integers(0, 2**32), unchecked=st.booleans())
def test_many_columns_of_any_kind(kit: SinkKit, seed: int, unchecked: bool):
    check_any_columns(kit, seed, unchecked=unchecked)
