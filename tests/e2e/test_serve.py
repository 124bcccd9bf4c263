"""`frazil serve`: its life as a process, and what it promises over real sockets."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.log.owner import read_owner
from frazil.log.remote.client import Client
from frazil.topics.layout import ARCHIVE
from tests.e2e.servers import JSON, RAW, Server, Tail, eventually, serving
from tests.topic_kit import TopicTable, settings_in

pytestmark = pytest.mark.timeout(300)

ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for all tests that leave it as it was, but for topics of their own."""
    from tests.e2e.conftest import Shell

    base = tmp_path_factory.mktemp("serve")
    (base / "home").mkdir()
    (base / "work").mkdir()
    with serving(Shell(base / "work", base / "home"), "--set", "log.max_message_size=100000") as running:
        yield running


@pytest.fixture
def topic(server, request) -> str:
    name = f"t{zlib.crc32(request.node.name.encode())}"
    server.create(name)
    return name


# -- the process -------------------------------------------------------------------------------------------------------


def test_its_addresses_are_printed_and_stand_in_the_lock_file(shell):
    with serving(shell) as server:
        owner = read_owner(Path(server.served["log"]))
        assert owner.pid == server.served["pid"] == server.process.pid
        assert owner.addresses == {name: server.served[name] for name in ("http", "flight")}
        assert server.get("/healthz") == {"status": "ok"}
        assert server.get("/readyz") == {"status": "ready", "topics": 0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_well_and_everything_is_there_the_next_time(shell, number):
    with serving(shell) as server:
        server.create("orders")
        server.publish("orders", "a", "b")
        tail = Tail(server, "/topics/orders/tail")
        server.send(number)
        assert server.wait() == 0, server.errors
        assert "Traceback" not in server.errors
        tail.close()
    assert read_owner(Path(server.served["log"])) is None
    with serving(shell) as again:
        assert again.payloads("orders") == ["a", "b"]


def test_a_request_that_runs_when_the_signal_comes_is_answered(shell):
    in_time = (topic for topic in ("first", "second", "third") if is_answered_at_the_end(shell, topic))
    topic = next(in_time, None)
    assert topic is not None, "the server hung up each time"
    with serving(shell) as again:
        assert again.payloads(topic) == ["abcd"]


def is_answered_at_the_end(shell, topic: str) -> bool:
    """False where this machine stood still for the 5 seconds after which the server may hang up."""
    with serving(shell) as server:
        server.create(topic)
        connection = server.connection()
        connection.putrequest("POST", f"/topics/{topic}/messages")
        connection.putheader("Content-Type", "application/octet-stream")
        connection.putheader("Content-Length", "4")
        connection.endheaders(b"ab")
        eventually(lambda: server.ask("GET", f"/topics/{topic}").status == 200)
        signalled = time.monotonic()
        server.send(signal.SIGTERM)
        eventually(lambda: refused(server))
        try:
            connection.send(b"cd")
            answer = connection.getresponse()
        except ConnectionError:
            assert time.monotonic() - signalled >= 5, "it hung up too early"
            return False
        assert answer.status == 200 and json.loads(answer.read())["level"] == "disk"
        assert server.wait() == 0, server.errors
    return True


def test_clients_that_hang_do_not_keep_it_from_stopping(shell):
    with serving(shell) as server:
        server.create("orders")
        for _ in range(8):
            server.publish("orders", *["x" * 1_000_000] * 3)
        deaf = Tail(server, "/topics/orders/tail?from=0")
        mute = server.connection()
        mute.putrequest("POST", "/topics/orders/messages")
        mute.putheader("Content-Type", "application/octet-stream")
        mute.putheader("Content-Length", "4")
        mute.endheaders(b"ab")
        assert server.get("/topics/orders")["end"] == 24
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        assert "Traceback" not in server.errors, server.errors
        deaf.close()
        mute.close()


def test_a_client_that_leaves_in_the_middle_is_no_error(shell):
    with serving(shell) as server:
        server.create("orders")
        leaving = server.connection()
        leaving.putrequest("POST", "/topics/orders/messages")
        leaving.putheader("Content-Type", "application/octet-stream")
        leaving.putheader("Content-Length", "4")
        leaving.endheaders(b"ab")
        leaving.close()
        server.publish("orders", "a")
        server.send(signal.SIGTERM)
        assert server.wait() == 0
        assert "Traceback" not in server.errors and "error" not in server.errors, server.errors
    with serving(shell) as again:
        assert again.payloads("orders") == ["a"]


def refused(server: Server) -> bool:
    try:
        server.ask("GET", "/healthz")
    except OSError:
        return True
    return False


def test_a_second_one_says_which_process_has_the_log(shell):
    with serving(shell) as server:
        done = shell.run("serve", "--set", "serve.http_port=0", "--set", "serve.flight_port=0")
    assert done.returncode == 11 and f"process {server.process.pid}" in done.stderr


@pytest.mark.parametrize("port", ["http_port", "flight_port"])
def test_a_port_in_use_is_told(shell, port):
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        ports = {"http_port": 0, "flight_port": 0} | {port: number}
        done = shell.run("serve", *(w for k, v in ports.items() for w in ("--set", f"serve.{k}={v}")))
    assert done.returncode == 11 and done.stdout == ""
    assert f"port {number}" in done.stderr and f"serve.{port}=0" in done.stderr


def test_an_address_of_another_machine_is_told(shell):
    done = shell.run("serve", "--set", "serve.host=192.0.2.1", "--set", "serve.http_port=0")
    assert done.returncode == 2 and "192.0.2.1" in done.stderr


def test_it_warns_when_the_network_can_reach_it(shell):
    with serving(shell, "--set", "serve.host=0.0.0.0") as server:
        eventually(lambda: "no authentication" in server.errors)
    with serving(shell) as server:
        assert "warning" not in server.errors


def test_an_idle_server_is_small(shell):
    with serving(shell) as server:
        server.create("orders", storage="iceberg")
        server.publish("orders", "a")
        server.payloads("orders")
        assert server.memory_mib() <= 200


def test_no_acknowledged_message_is_lost_by_kill_9_and_none_is_doubled_by_repeating(shell):
    """A producer with an identity repeats what was not acknowledged; all that it sent is there, once, in order."""
    sent, acknowledged = 0, {}
    with serving(shell) as server:
        server.create("orders")
        identity = server.post("/topics/orders/producers", {"name": "p"}).json
    for _ in range(3):
        with serving(shell) as server:
            killer = threading.Timer(0.7, lambda running=server: running.send(signal.SIGKILL))
            killer.start()
            try:
                while True:
                    answer = server.ask("POST", f"/topics/orders/messages?sequence={sent}&{query(identity)}",
                                        str(sent).encode(), RAW)  # fmt: skip
                    assert answer.status == 200, answer.body
                    acknowledged[sent] = answer.json["offset"]
                    sent += 1
            except (OSError, EOFError, ValueError, http.client.HTTPException):
                server.wait()
            killer.cancel()
    with serving(shell) as server:
        answer = server.ask(
            "POST", f"/topics/orders/messages?sequence={sent}&{query(identity)}", str(sent).encode(), RAW
        )
        assert answer.status == 200, answer.body
        found, at = {}, 0
        while at < server.get("/topics/orders")["end"]:
            page = server.get(f"/topics/orders/messages?from={at}")
            found |= {message["offset"]: message["payload"] for message in page["messages"]}
            at = page["next"]
    assert list(found.values()) == [str(number) for number in range(sent + 1)]
    assert {number: found[offset] for number, offset in acknowledged.items()} == {n: str(n) for n in acknowledged}


def query(identity: dict[str, int]) -> str:
    return "&".join(f"{name}={value}" for name, value in identity.items())


# -- publish -----------------------------------------------------------------------------------------------------------


def test_messages_come_as_json_lines_bytes_and_arrow(server, topic):
    path = f"/topics/{topic}/messages"
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"payload": [b"five", b"six"], "size": [5, 6]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    requests = [
        (b'{"messages": [{"payload": "one"}, {"payload_json": [2], "headers": {"k": "v"}}]}', JSON),
        (b'{"payload": "three"}\n', {"Content-Type": "application/x-ndjson; charset=utf-8"}),
        (b"four", {**RAW, "X-Frazil-Header-Kind": "raw", "X-Frazil-Crc32": str(zlib.crc32(b"four"))}),
        (sink.getvalue().to_pybytes(), ARROW),
    ]
    answers = [server.ask("POST", path, body, headers) for body, headers in requests]
    assert [(a.status, a.json["offset"], a.json["count"], a.json["level"]) for a in answers] == [
        (200, 0, 2, "disk"), (200, 2, 1, "disk"), (200, 3, 1, "disk"), (200, 4, 2, "disk"),
    ]  # fmt: skip
    messages = server.get(path)["messages"]
    assert [m["payload"] for m in messages] == ["one", "[2]", "three", "four", "five", "six"]
    assert [m["headers"] for m in messages] == [None, {"k": "v"}, None, {"kind": "raw"}, None, None]
    assert messages[-1]["columns"] == {"size": 6}
    assert server.get(f"/topics/{topic}")["columns"] == {"size": "int64"}


def test_a_level_can_be_asked_for(server, topic):
    for level in ("memory", "os", "disk"):
        answer = server.ask("POST", f"/topics/{topic}/messages?level={level}", b"a", RAW)
        assert answer.json["level"] == level
        assert (answer.json["offset"] == -1) == (level == "memory")


def test_a_repeated_batch_is_known_and_an_older_producer_is_shut_out(server, topic):
    first = server.post(f"/topics/{topic}/producers", {"name": "p"}).json
    path = f"/topics/{topic}/messages?sequence=0"
    once = server.ask("POST", f"{path}&{query(first)}", b"a", RAW).json
    twice = server.ask("POST", f"{path}&{query(first)}", b"a", RAW).json
    assert not once["duplicate"] and twice == {**once, "duplicate": True}
    second = server.post(f"/topics/{topic}/producers", {"name": "p"}).json
    assert second["producer_id"] == first["producer_id"] and second["producer_epoch"] > first["producer_epoch"]
    fenced = server.ask("POST", f"/topics/{topic}/messages?sequence=1&{query(first)}", b"b", RAW)
    assert 400 <= fenced.status < 500
    assert server.payloads(topic) == ["a"]
    assert server.get(f"/topics/{topic}/messages")["messages"][0]["producer_name"] == "p"


def pieces(size: int):
    for _ in range(size // 65536):
        yield b"x" * 65536


BAD_BODIES = [
    (b"{", JSON, 400, "not valid"),
    (b'{"messages": [{"payload": 1}]}', JSON, 400, "messages.0.payload"),
    (b'{"messages": [{"payload": "a", "offset": 3}]}', JSON, 400, "messages.0.offset"),
    (b'{"payload": "a"}\n{\n', {"Content-Type": "application/x-ndjson"}, 400, "line 2"),
    (b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "x-www-form-urlencoded"),
    (b"a", {}, 415, "(none)"),
    (b"a", {**RAW, "Content-Encoding": "gzip"}, 415, "gzip"),
    (b"a", {**RAW, "X-Frazil-Crc32": "1"}, 422, "CRC"),
    (b"a", {**RAW, "X-Frazil-Crc32": "x"}, 400, "X-Frazil-Crc32"),
    (b"no arrow", ARROW, 422, "no Arrow stream"),
    (b"x" * 100_001, RAW, 400, "over the limit of 100,000"),
    (b"x" * (17 << 20), RAW, 413, "over the limit"),
]


@pytest.mark.parametrize(("body", "headers", "status", "told"), BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_bad_body_is_refused_in_words_and_nothing_is_stored(server, topic, body, headers, status, told):
    answer = server.ask("POST", f"/topics/{topic}/messages", body, headers)
    assert answer.status == status and told in answer.json["message"]
    assert answer.json.keys() == {
        "error",
        "message",
        "cause",
        "hint",
        "exit_code",
        "retryable",
        "acknowledged",
        "stored",
    }
    assert (answer.json["acknowledged"], answer.json["stored"]) == (0, "no")
    assert server.get(f"/topics/{topic}")["written"] == 0


def test_a_body_of_unknown_length_is_cut_off_at_the_limit(server, topic):
    answer = server.ask("POST", f"/topics/{topic}/messages", pieces(17 << 20), RAW)
    assert answer.status == 413
    small = server.ask("POST", f"/topics/{topic}/messages", pieces(65536), RAW)
    assert small.status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "told"),
    [
        ("POST", "/topics/nothere/messages", 404, "topic 'nothere' does not exist"),
        ("GET", "/topics/nothere/messages", 404, "topic 'nothere' does not exist"),
        ("GET", "/topics/nothere/tail", 404, "topic 'nothere' does not exist"),
        ("GET", "/topics/nothere", 404, "topic 'nothere' does not exist"),
        ("GET", "/topics/No-Name", 400, "no topic's name"),
        ("POST", "/topics/No-Name", 400, "no topic's name"),
        ("POST", "/topics/dead_letters", 400, "dead_letters"),
        ("GET", "/topics/{topic}/messages?from=yesterday", 400, "yesterday"),
        ("GET", "/topics/{topic}/messages?from=7", 400, "beyond the end"),
        ("GET", "/topics/{topic}/messages?limit=0", 400, "limit"),
        ("GET", "/topics/{topic}/messages?limit=x", 400, "limit"),
        ("GET", "/topics/{topic}/messages?format=xml", 400, "format"),
        ("GET", "/topics/{topic}/tail?from=7", 400, "beyond the end"),
        ("POST", "/topics/{topic}/messages?level=tape", 400, "level"),
        ("POST", "/topics/{topic}/messages?sequence=1", 400, "producer_id and producer_epoch"),
        ("PUT", "/topics/{topic}/subscriptions/s", 400, "offset"),
        ("POST", "/topics/{topic}", 409, "already"),
        ("DELETE", "/topics/{topic}", 400, "nothing was deleted"),
        ("DELETE", "/topics/{topic}/messages", 405, "Method Not Allowed"),
        ("GET", "/nothing", 404, "/nothing"),
        ("GET", "/docs", 404, "/docs"),
    ],
)
def test_a_bad_request_is_refused_in_words(server, topic, method, path, status, told):
    publishes = path.partition("?")[0].endswith("/messages") and method == "POST"
    body, headers = (b"a", RAW) if publishes else (None, {})
    answer = server.ask(method, path.format(topic=topic), body, headers)
    assert answer.status == status and told in answer.json["message"]


def test_the_nearest_topic_is_named(server, topic):
    assert topic in server.ask("POST", f"/topics/{topic[:-1]}/messages", b"a", RAW).json["hint"]


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example.com"}, {"Host": "evil.example.com:80"}]
)
def test_a_web_page_of_another_site_is_kept_out(server, topic, headers):
    answer = server.ask("POST", f"/topics/{topic}/messages", b"a", {**RAW, **headers})
    assert answer.status == 403
    assert server.get(f"/topics/{topic}")["end"] == 0


def test_a_full_log_asks_producers_to_come_again_and_takes_nothing_more(shell):
    with serving(shell, "--set", "log.size_limit=30000", "--set", "log.max_file_size=4096") as server:
        server.create("orders")
        for _ in range(100):
            answer = server.ask("POST", "/topics/orders/messages", b"x" * 1000, RAW)
            if answer.status != 200:
                break
        assert answer.status == 503 and int(answer.headers["retry-after"]) >= 1
        assert answer.json["retryable"] and "limit" in answer.json["message"]
        end = server.get("/topics/orders")["end"]
        assert server.ask("POST", "/topics/orders/messages", b"x" * 1000, RAW).status == 503
        assert server.get("/topics/orders")["end"] == end
        ready = server.ask("GET", "/readyz")
        assert ready.status == 503 and "limit of 30,000 bytes" in ready.json["cause"]


def test_many_large_requests_at_once_do_not_grow_the_server(shell):
    limits = ("--set", "log.max_buffer=16777216", "--set", "log.size_limit=2000000000")
    with serving(shell, *limits) as server:
        server.create("orders")
        statuses: list[int] = []

        def publish() -> None:
            began = time.monotonic()
            status = server.ask("POST", "/topics/orders/messages", b"x" * (8 << 20), RAW).status
            if status == 503 and time.monotonic() - began >= 20:  # so long a body waits for memory: a slow disk
                publish()
            else:
                statuses.append(status)

        threads = [threading.Thread(target=publish) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 32
        assert server.memory_mib() < 450  # 256 MiB were sent at once


# -- read --------------------------------------------------------------------------------------------------------------


def test_pages_follow_each_other(server, topic):
    server.publish(topic, *map(str, range(25)))
    seen, at = [], 0
    while True:
        page = server.get(f"/topics/{topic}/messages?from={at}&limit=10")
        if not page["messages"]:
            break
        seen.append([m["offset"] for m in page["messages"]])
        at = page["next"]
    assert seen == [list(range(10)), list(range(10, 20)), list(range(20, 25))]


def test_a_time_is_a_place_too(server, topic):
    server.publish(topic, "a")
    time = server.get(f"/topics/{topic}/messages")["messages"][0]["publish_time"]
    assert len(server.get(f"/topics/{topic}/messages?from={time}")["messages"]) == 1
    assert server.get(f"/topics/{topic}/messages?from=2999-01-01T00:00:00Z")["messages"] == []


def test_lines_and_arrow_say_in_headers_where_to_go_on(server, topic):
    server.publish(topic, "a", "b", "c")
    lines = server.ask("GET", f"/topics/{topic}/messages?format=ndjson&limit=2")
    assert [json.loads(line)["payload"] for line in lines.body.splitlines()] == ["a", "b"]
    arrow = server.ask("GET", f"/topics/{topic}/messages?format=arrow&from={lines.headers['x-frazil-next']}")
    with pa.ipc.open_stream(arrow.body) as reader:
        table = reader.read_all()
    assert table.column("payload").to_pylist() == [b"c"] and table.column("topic_name").to_pylist() == [topic]
    assert arrow.headers["x-frazil-next"] == arrow.headers["x-frazil-end"] == "3"


def test_what_retention_has_removed_is_gone_and_the_answer_says_from_where_on_it_can_be_read(shell):
    with serving(shell, "--set", "log.max_file_size=4096") as server:
        server.create("orders")
        for _ in range(20):
            server.ask("POST", "/topics/orders/messages", b"x" * 1000, RAW)
        with Client(server.served["flight"]) as client:
            start = client.retain("orders", size=0).start
        assert start > 0
        for path in ("/topics/orders/messages?from=0", "/topics/orders/tail?from=0"):
            gone = server.ask("GET", path)
            assert gone.status == 410 and gone.json["start"] == start
        assert server.get("/topics/orders/messages")["messages"][0]["offset"] == start


# -- what only the table has -------------------------------------------------------------------------------------------


@contextmanager
def with_table(shell) -> Iterator[tuple[Server, TopicTable]]:
    """A server with a topic in small segments, and its table, which the test fills itself."""
    home = shell.folder / "data"
    with serving(shell, "--set", f"home={home}", "--set", "log.max_file_size=4096") as server:
        server.create("orders", storage="iceberg")
        with Client(server.served["flight"]) as client:
            yield server, TopicTable(client, "orders", settings_in(home))


def move(table: TopicTable, upto: int | None = None) -> int:
    """Into the table, and out of the log, as the pipeline does; returns the first offset that the log still has."""
    table.sink(upto)
    table.log.report(table.topic, ARCHIVE, table.position)
    return table.log.retain(table.topic, size=0).start


def test_pages_and_tails_cross_from_the_table_into_the_log(shell):
    texts = [f"{number} {'x' * 500}" for number in range(30)]
    with with_table(shell) as (server, table):
        for text in texts:
            server.publish("orders", text)
        start = move(table, upto=20)
        assert 5 < start <= 20, "the log has only the end"
        assert server.payloads("orders") == texts
        at, pages = 0, []
        while at < 30:
            page = server.get(f"/topics/orders/messages?from={at}&limit=4")
            pages.append([m["offset"] for m in page["messages"]])
            at = page["next"]
        assert pages == [list(range(n, min(n + 4, 30))) for n in range(0, 30, 4)]

        oldest = server.get("/topics/orders/messages?from=start&limit=1")["messages"][0]
        assert (oldest["offset"], oldest["payload"]) == (0, texts[0])
        (third,) = server.get("/topics/orders/messages?from=2&limit=1")["messages"]
        by_time = server.get(f"/topics/orders/messages?from={third['publish_time']}")["messages"]
        assert [m["offset"] for m in by_time] == list(range(2, 30))

        tail = Tail(server, "/topics/orders/tail?from=start")
        assert [m["payload"] for m in tail.messages(30)] == texts
        server.publish("orders", "later")
        (later,) = tail.messages(1)
        assert (later["offset"], later["payload"]) == (30, "later")
        tail.close()
        again = Tail(server, "/topics/orders/tail", last_seen=2)
        assert [m["offset"] for m in again.messages(28)] == list(range(3, 31))
        again.close()


def test_a_tail_that_retention_overtakes_goes_on_in_the_table(shell):
    text = "x" * 50_000
    with with_table(shell) as (server, table):
        tail = Tail(server, "/topics/orders/tail?from=0")
        for number in range(20):
            server.publish("orders", *(f"{20 * number + n} {text}" for n in range(20)))  # 20 MB: more than sockets hold
        assert move(table) > 370
        server.publish("orders", "later")
        found = tail.messages(401)
        assert [m["offset"] for m in found] == list(range(401))
        assert [m["payload"].split()[0] for m in found] == [*map(str, range(400)), "later"]
        tail.close()


# -- live tail ---------------------------------------------------------------------------------------------------------


def test_a_tail_has_what_was_there_and_what_comes(server, topic):
    server.publish(topic, "a", "b")
    tail = Tail(server, f"/topics/{topic}/tail?from=1")
    assert [m["payload"] for m in tail.messages(1)] == ["b"]
    server.publish(topic, "c", "d")
    assert [m["payload"] for m in tail.messages(2)] == ["c", "d"]
    tail.close()


def test_a_tail_begins_at_the_end_where_nothing_else_is_said(server, topic):
    server.publish(topic, "a")
    tail = Tail(server, f"/topics/{topic}/tail")
    server.publish(topic, "b")
    assert [m["payload"] for m in tail.messages(1)] == ["b"]
    tail.close()


def test_a_client_that_comes_back_misses_nothing_also_when_the_server_was_killed(shell):
    with serving(shell) as server:
        server.create("orders")
        server.publish("orders", "a", "b", "c")
        tail = Tail(server, "/topics/orders/tail?from=start")
        last = tail.messages(2)[-1]["offset"]
        server.send(signal.SIGKILL)
        server.wait()
        tail.close()
    with serving(shell) as server:
        server.publish("orders", "d")
        tail = Tail(server, "/topics/orders/tail", last_seen=last)
        assert [m["payload"] for m in tail.messages(2)] == ["c", "d"]
        tail.close()


def test_a_quiet_tail_is_kept_alive_and_its_end_is_noticed(server, topic):
    tail = Tail(server, f"/topics/{topic}/tail?heartbeat=0.2")
    assert [tail.block() for _ in range(3)] == [[": alive"]] * 3
    assert server.metric(f'frazil_http_tails{{topic="{topic}"}}') == 1
    tail.close()
    eventually(lambda: server.metric(f'frazil_http_tails{{topic="{topic}"}}') == 0)


def test_a_slow_tail_slows_nobody_and_gets_everything_in_the_end(server, topic):
    slow = Tail(server, f"/topics/{topic}/tail?from=0")
    quick = Tail(server, f"/topics/{topic}/tail?from=0")
    text = "x" * 50_000
    before = server.memory_mib()
    for number in range(400):  # 20 MB: more than sockets hold
        server.publish(topic, f"{number} {text}")
        assert quick.messages(1)[0]["offset"] == number
    assert server.memory_mib() - before < 60
    assert [m["offset"] for m in slow.messages(400)] == list(range(400))
    slow.close()
    quick.close()


def test_a_tail_of_a_topic_that_is_deleted_ends_with_an_error(server, topic):
    tail = Tail(server, f"/topics/{topic}/tail")
    assert server.ask("DELETE", f"/topics/{topic}?yes=true").status == 204
    event = tail.event()
    assert event["event"] == "error" and json.loads(event["data"])["error"] in ("NotFoundError", "UnavailableError")
    assert tail.block() is None
    tail.close()


# -- topics ------------------------------------------------------------------------------------------------------------


def test_a_topic_is_created_shown_configured_and_deleted(server):
    server.create("life")
    assert "life" in [t["name"] for t in server.get("/topics")["topics"]]
    body = json.dumps({"retention_bytes": 1000, "retention_age_s": 60}).encode()
    changed = server.ask("PATCH", "/topics/life", body, JSON)
    assert changed.status == 200 and changed.json["retention_bytes"] == 1000
    assert server.get("/topics/life")["retention_age_s"] == 60
    assert server.ask("PATCH", "/topics/life", b'{"nix": 1}', JSON).status == 400
    assert server.ask("DELETE", "/topics/life").status == 400
    assert server.ask("DELETE", "/topics/life?yes=true").status == 204
    assert server.ask("GET", "/topics/life").status == 404


def test_new_topics_have_the_storage_of_the_settings(server):
    assert server.post("/topics/stored").json["storage"] == "iceberg"


def test_a_subscription_is_kept(shell):
    with serving(shell) as server:
        server.create("orders")
        stored = server.ask("PUT", "/topics/orders/subscriptions/mails", b'{"offset": 5}', JSON)
        assert stored.json == {"topic": "orders", "subscription": "mails", "offset": 5}
        server.send(signal.SIGKILL)
        server.wait()
    with serving(shell) as server:
        assert server.get("/topics/orders")["subscriptions"] == {"mails": 5}


def test_metrics_count_the_messages(server, topic):
    server.publish(topic, "a", "b")
    eventually(lambda: server.metric(f'frazil_log_messages_total{{topic="{topic}"}}') == 2)


# -- objects -----------------------------------------------------------------------------------------------------------


def test_an_event_is_listed_as_soon_as_it_is_acknowledged_without_a_pipeline(server):
    def post(key: str, sequence: str, name: str = "ObjectCreated:Put") -> None:
        thing = {"key": key, "sequencer": sequence, "eTag": "e", "size": 7}
        event = {"eventVersion": "2.1", "eventSource": "aws:s3", "eventTime": "2026-01-31T12:00:00Z", "eventName": name}
        event |= {"s3": {"bucket": {"name": "photos"}, "object": thing}}
        assert server.post("/events/s3", {"Records": [event]}).status == 200

    def listed() -> list[str]:
        found = server.get("/content/objects?bucket=photos")
        assert "lag" not in found
        return [row["key"] for row in found["objects"]]

    post("a.jpg", "01")
    assert listed() == ["a.jpg"]  # there is no table yet
    taken = server.post("/content/edits", {"bucket": "photos", "edits": [{"key": "a.jpg", "add": ["x"]}]})
    assert taken.status == 202
    assert server.get("/content/object?bucket=photos&key=a.jpg")["user_tags"] == ["x"]
    for number in range(10):
        post(f"b{number}.jpg", f"{number:02}")
        assert f"b{number}.jpg" in listed()  # how long it takes is measured by `make bench ARGS=tail`
    post("a.jpg", "02", "ObjectRemoved:Delete")
    assert "a.jpg" not in listed()


def test_a_tag_of_the_command_line_goes_to_the_server_without_loading_arrow_or_iceberg(shell):
    with serving(shell) as server:
        thing = {"key": "a.jpg", "sequencer": "01", "eTag": "e", "size": 7}
        event = {"eventVersion": "2.1", "eventSource": "aws:s3", "eventTime": "2026-01-31T12:00:00Z"}
        event |= {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "photos"}, "object": thing}}
        assert server.post("/events/s3", {"Records": [event]}).status == 200
        done = shell.run(
            "content", "tag", "photos", "a.jpg", "--add", "x", "-o", "json", env={"PYTHONPROFILEIMPORTTIME": "1"}
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["visible"] is True
        loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
        assert "frazil.content.annotations.edit_client" in loaded
        assert not loaded & {"pyarrow", "pyiceberg", "numpy"}
        assert server.get("/content/object?bucket=photos&key=a.jpg")["user_tags"] == ["x"]
        missed = shell.run("content", "tag", "photos", "a.jgp", "--add", "x")
        assert missed.returncode == 10
        assert "Try: a.jpg" in missed.stderr
