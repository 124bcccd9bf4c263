"""Arrow data that is broken in itself is refused over HTTP and Flight, and the server that reads it goes on."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.e2e.servers import RAW, Server, serving

ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from tests.e2e.conftest import Shell

    base = tmp_path_factory.mktemp("arrow")
    for name in ("home", "work"):
        (base / name).mkdir()
    with serving(Shell(base / "work", base / "home", {}), "--set", "topics.storage=log") as running:
        yield running


@pytest.fixture
def topic(server: Server) -> str:
    name = f"t{next(_numbers)}"
    server.create(name)
    return name


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"payload": pa.array([b"odd"]), **columns})


def stream_of(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def by_http(server: Server, topic: str, batch: pa.RecordBatch) -> None:
    for body in (stream_of(batch), stream_of(batch, batch)):
        answer = server.ask("POST", f"/topics/{topic}/messages", body, ARROW)
        assert answer.status == 400 and answer.json["stored"] == "no", answer.body


def put(address: str, topic: str, batch: pa.RecordBatch) -> None:
    with flight.FlightClient(address) as client:
        writer, replies = client.do_put(flight.FlightDescriptor.for_path(topic), batch.schema)
        writer.write_batch(batch)
        writer.done_writing()
        replies.read()
        writer.close()


def by_flight(server: Server, topic: str, batch: pa.RecordBatch) -> None:
    with pytest.raises(flight.FlightServerError, match="column"):
        put(server.served["flight"], topic, batch)


def require_alive(server: Server, topic: str) -> None:
    """Requires that the process takes the next message, and has none of those before."""
    assert server.process.poll() is None, server.errors[-2000:]
    assert server.ask("POST", f"/topics/{topic}/messages", b"good", RAW).json["offset"] == 0
    assert "Traceback" not in server.errors


def map_with_null_in_dictionary() -> pa.Array:
    """A map that Arrow takes for valid, although a key is null by the dictionary of the keys."""
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    return pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), keys, pa.array(["x", "y"]))


NULL_KEYS: dict[str, Callable[[pa.Array], dict[str, pa.Array]]] = {
    "a column": lambda keyed: {"own": keyed},
    "inside a list": lambda keyed: {"own": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), keyed)},
    "inside a struct": lambda keyed: {"own": pa.StructArray.from_arrays([keyed], ["inner"])},
    "headers": lambda keyed: {"headers": keyed},
    "headers of an extension type": lambda keyed: {
        "headers": pa.ExtensionArray.from_storage(pa.opaque(keyed.type, "kind", "vendor"), keyed)
    },
}


@pytest.mark.parametrize("place", NULL_KEYS)
@pytest.mark.parametrize("send", [by_http, by_flight])
def test_a_map_key_that_is_null_by_its_dictionary_does_not_end_the_server(server, topic, send, place):
    send(server, topic, batch_of(**NULL_KEYS[place](map_with_null_in_dictionary())))
    require_alive(server, topic)


@pytest.mark.parametrize("unit", [0, 1])
def test_a_type_that_pyarrow_does_not_know_is_refused_with_the_name_of_the_column(server, topic, unit):
    """The intervals of SQL, as Arrow for Java has them."""
    body = bytearray(stream_of(batch_of(own=pa.array([pa.MonthDayNano([1, 2, 3])]))))
    body[body.index(b"\6\0\0\0\0\0\2\0\x10\0") + 6] = unit
    answer = server.ask("POST", f"/topics/{topic}/messages", bytes(body), ARROW)
    assert answer.status == 400 and "column 'own' has type" in answer.json["message"], answer.body
    require_alive(server, topic)


@contextmanager
def changing(address: str, before: bytes, after: bytes) -> Iterator[str]:
    """A proxy that changes what a client sends: PyArrow's own client sends no offsets that lead out of a batch."""
    host, port = address.rpartition("/")[2].split(":")
    assert len(before) == len(after)

    def copy(source: socket.socket, target: socket.socket, *, change: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                target.sendall(data.replace(before, after) if change else data)
            target.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def forward() -> None:
            with proxy.accept()[0] as client, socket.create_connection((host, int(port))) as broker:
                threading.Thread(target=copy, args=(broker, client), kwargs={"change": False}, daemon=True).start()
                copy(client, broker, change=True)

        threading.Thread(target=forward, daemon=True).start()
        yield f"grpc://127.0.0.1:{proxy.getsockname()[1]}"


def test_offsets_that_lead_out_of_a_batch_do_not_end_the_server(server, topic):
    inner = pa.array(["abc"] * 77)
    batch = batch_of(own=pa.LargeListArray.from_arrays(pa.array([0, 77], pa.int64()), inner))
    before, after = struct.pack("<qq", 0, 77), struct.pack("<qq", 0, 2**40)
    refused = pytest.raises(flight.FlightServerError, match="column 'own' has values")
    with changing(server.served["flight"], before, after) as address, refused:
        put(address, topic, batch)
    require_alive(server, topic)


@pytest.mark.parametrize("column", [pa.array([1]), pa.array([{"a": 1}], pa.struct([("odd-name", pa.int64())]))])
def test_names_that_are_no_utf_8_are_refused_with_the_reason(server, topic, column):
    name = "own" if pa.types.is_struct(column.type) else "odd-name"
    refused = pytest.raises(flight.FlightServerError, match="not UTF-8")
    with changing(server.served["flight"], b"odd-name", b"odd\xff\xfe\xff\xfe\xff") as address, refused:
        put(address, topic, batch_of(**{name: column}))
    body = stream_of(batch_of(**{name: column})).replace(b"odd-name", b"odd\xff\xfe\xff\xfe\xff")
    assert server.ask("POST", f"/topics/{topic}/messages", body, ARROW).status == 400
    require_alive(server, topic)
