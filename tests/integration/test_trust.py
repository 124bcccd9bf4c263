"""What comes from outside is an event or a dead letter: through real HTTP, Flight and files, down to the tables."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import uvicorn
from pyspark.sql import SparkSession

from frazil.api.app import create_app
from frazil.content.annotations.messages import edit, extraction, fields
from frazil.content.buckets import is_readable
from frazil.content.events.observation import observation
from frazil.content.extraction.job import count_planned, extract
from frazil.content.extraction.selection import ExtractionRequest
from frazil.content.extraction.sources import open_source
from frazil.content.intake.files import FileIntake
from frazil.content.intake.messages import store
from frazil.content.scan.engine import RunningEngine
from frazil.content.scan.folder import open_folder
from frazil.content.scan.listing import resolve_target
from frazil.content.scan.session import ScanSession
from frazil.content.sink.head_requests import HeadRequests
from frazil.content.tables import ContentTables
from frazil.errors import NotAllowedError, UsageError
from frazil.extract import Unsupported
from frazil.extract.engine.source import ObjectRef
from frazil.log import Batch, Log, Producer
from frazil.log.remote.broker import Broker
from frazil.log.remote.client import Client
from frazil.log.remote.transport import flight
from frazil.log.trust import INTERNAL_HEADER, KEY_FILE, add_mark, make_proof
from frazil.settings import Settings, load_settings
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.topics import connect, open_log
from frazil.topics.dead_letters.filters import DeadLetterFilter
from frazil.topics.dead_letters.replay import replay_dead_letters
from tests.content_sink_kit import ContentKit, body, content_kit
from tests.content_truth import Told

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
MARK = [(INTERNAL_HEADER, "1")]
ORDER = [{"name": "stolen", "type": "STRING", "jpath": "$.text.text"}]


# -- the edges of the log ----------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(tmp_path / "log") as made:
        made.create_topic("t")
        yield made


@pytest.fixture
def address(log: Log) -> Iterator[str]:
    with Broker(log) as broker:
        yield broker.address


def put(address: str, batch: pa.RecordBatch, *metadata: tuple[bytes, bytes]) -> None:
    """As any Flight client does it."""
    with flight.FlightClient(address) as client:
        options = flight.FlightCallOptions(headers=list(metadata))
        writer, replies = client.do_put(flight.FlightDescriptor.for_path("t"), batch.schema, options)
        writer.write_batch(batch)
        writer.done_writing()
        replies.read()
        writer.close()


def forged(name: str = INTERNAL_HEADER, *, messages: int = 1) -> pa.RecordBatch:
    headers = [None] * (messages - 1) + [[("source", "scan"), (name, "1")]]
    column = pa.array(headers, pa.map_(pa.string(), pa.string()))
    return pa.record_batch({"payload": pa.array([b"{}"] * messages, pa.binary()), "headers": column})


@pytest.mark.parametrize("key", [None, "", "0" * 64, "right"])
@pytest.mark.parametrize("name", [INTERNAL_HEADER, "Frazil-Internal"])
@pytest.mark.parametrize("messages", [1, 3])
def test_nobody_puts_a_marked_message_by_do_put_whatever_key_it_sends(log, address, key, name, messages):
    sent = [] if key is None else [(b"frazil-key", (make_proof(log.key) if key == "right" else key).encode())]
    with pytest.raises(flight.FlightServerError, match="reserved for messages of Frazil's own"):
        put(address, forged(name, messages=messages), *sent)
    assert log.info("t").end == 0


def test_headers_of_another_arrow_type_do_not_slip_through(log, address):
    text = pa.array([MARK], pa.map_(pa.string(), pa.string()))
    pairs = pa.struct([("key", pa.string()), ("value", pa.string())])
    for column in (
        text.cast(pa.map_(pa.large_string(), pa.string())),
        text.cast(pa.map_(pa.binary(), pa.binary())),
        pa.MapArray.from_arrays(text.offsets, text.keys.dictionary_encode(), text.items),
        pa.array([[{"key": INTERNAL_HEADER, "value": "1"}]], pa.list_(pairs)),
    ):
        with pytest.raises((flight.FlightServerError, pa.ArrowException)):
            put(address, pa.record_batch({"payload": pa.array([b"{}"], pa.binary()), "headers": column}))
    assert log.info("t").end == 0


@pytest.mark.parametrize("key", [None, "0" * 64])
def test_frazils_own_client_needs_the_key_of_the_log(log, address, key):
    with Client(address, key=key) as client:
        with pytest.raises(NotAllowedError, match="key"):
            client.append("t", Batch.of_arrow(forged()), internal=True)
        with pytest.raises(NotAllowedError, match="key"), Producer(client, "t", internal=True) as producer:
            producer.publish(b"{}", headers=add_mark({}))
        with pytest.raises(UsageError, match="reserved"):
            client.append("t", Batch.of_arrow(forged()))
        with pytest.raises(UsageError, match="reserved"), Producer(client, "t") as producer:
            producer.publish(b"{}", headers=add_mark({}))
        assert client.append("t", Batch.of_messages([b"{}"])).offset == 0, "what is not marked needs no key"
    with Client(address, key=log.key) as own, Producer(own, "t", internal=True) as producer:
        assert producer.publish(b"{}", headers=add_mark({})).offset == 1
        with pytest.raises(UsageError, match="reserved"):
            own.append("t", Batch.of_arrow(forged()))


def test_a_log_of_this_process_takes_marked_messages_only_from_who_says_that_they_are_frazils_own(log):
    for call in (
        lambda: log.publish("t", b"{}", headers=add_mark({})),
        lambda: log.append("t", Batch.of_arrow(forged())),
        lambda: asyncio.run(_awaited(log)),
    ):
        with pytest.raises(UsageError, match="reserved"):
            call()
    assert log.append("t", Batch.of_arrow(forged()), internal=True).offset == 0


async def _awaited(log: Log) -> Any:
    return await log.append_async("t", Batch.of_arrow(forged()))


def test_the_key_stays_and_only_its_owner_may_read_it(tmp_path: Path):
    file = tmp_path / "log" / KEY_FILE
    with Log.open(tmp_path / "log") as first:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.read_text() == first.key
    with Log.open(tmp_path / "log") as second:
        assert second.key == first.key
    file.chmod(0o644)
    with Log.open(tmp_path / "log") as third:
        assert third.key != first.key, "others could have read it"
    os.truncate(file, 7)
    with Log.open(tmp_path / "log") as fourth:
        assert len(fourth.key) == 64 and stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_component_finds_the_key_by_its_settings_and_a_log_key_goes_before_the_file(tmp_path: Path):
    flags = {"home": str(tmp_path), "log.min_free": "0"}
    file = tmp_path / "log" / KEY_FILE
    for given in ({}, {"log.key": "a long random text thät both sides have"}):
        settings = load_settings(flags=flags | given, environ={})
        with open_log(settings) as opened, Broker(opened) as broker:
            opened.create_topic("t", exist_ok=True)
            opened.announce(flight=broker.address)
            with connect(settings) as access:
                assert store(access, "t", [b"{}"], {"source": "test"}, internal=True).count == 1
            mine, other = file.read_text(), "0" * 64
            file.write_text(other)
            with connect(load_settings(flags=flags, environ={})) as access, pytest.raises(NotAllowedError, match="key"):
                store(access, "t", [b"{}"], {"source": "test"}, internal=True)
            file.write_text(mine)


# -- what may be read --------------------------------------------------------------------------------------------------


@contextmanager
def listening() -> Iterator[tuple[int, list[str]]]:
    """A port of this machine that must not see anybody."""
    seen: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server.getsockname()[1], seen
        with suppress(BlockingIOError):
            seen.append(str(server.accept()[1]))


@pytest.mark.parametrize(
    ("bucket", "patterns", "readable"),
    [
        ("photos", None, True),
        ("photos", [], False),
        ("photos", ["logs-*", "photos"], True),
        ("photos", ["PHOTOS", "photo"], False),
        ("logs-1", ["logs-?"], True),
        ("file:///srv/photos", None, True),
        ("file:///srv/photos", ["*"], False),
        ("file:///srv/photos", ["/srv/photos"], True),
        ("file:///srv/photos", ["file:///srv/*"], True),
        ("file:///srv/photos", ["/srv/photos/*"], False),
        ("srv", ["/*"], False),
    ],
)
def test_patterns_of_buckets_and_folders(bucket, patterns, readable):
    assert is_readable(bucket, patterns) is readable


@pytest.mark.parametrize(
    ("bucket", "key"),
    [
        ("127.0.0.1:{port}", "a"),
        ("127.0.0.1:{port}/x", "a"),
        ("../x", "a"),
        ("user@host", "a"),
        ("b", "../../x"),
        ("b", "a/../../x"),
    ],
)
def test_nothing_is_asked_of_another_host_or_bucket_than_the_one_that_is_named(bucket, key):
    """Also for rows that an older version has taken."""
    network = NetworkSettings(retry_attempts=1, connect_timeout=1)
    with listening() as (port, seen):
        s3 = S3Settings(endpoint=f"http://127.0.0.1:{port}", access_key="k", secret_key="s")
        name = bucket.format(port=port)
        told, failed = HeadRequests(s3, network).look_up([(name, key, "")])
        assert told.num_rows == 0 and isinstance(failed[name, key], UsageError)
        with pytest.raises(Unsupported):
            open_source(ObjectRef(name, key), s3, network)
    assert seen == []


def test_only_buckets_and_folders_that_the_settings_name_are_asked(tmp_path):
    (tmp_path / "a").write_text("a")
    with listening() as (port, seen):
        store = {"home": str(tmp_path / "home"), "s3.endpoint": f"http://127.0.0.1:{port}"}
        settings = load_settings(flags=store | {"content.buckets": "other,/srv/*"}, environ={})
        for place in ("photos", str(tmp_path)):
            with pytest.raises(NotAllowedError, match=r"content\.buckets"):
                resolve_target(place, settings)
        keys = [("photos", "a", ""), (f"file://{tmp_path}", "a", "")]
        told, failed = HeadRequests.of(settings).look_up(keys)
        assert told.num_rows == 0 and [type(failed[key[:2]]) for key in keys] == [NotAllowedError] * 2
    assert seen == []


# -- down to the tables ------------------------------------------------------------------------------------------------


@pytest.fixture
def kit(lane_settings: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[ContentKit]:
    with content_kit(lane_settings, spark, tmp_path / "kit") as made:
        yield made


class Web:
    """The app of `frazil serve`, behind a socket."""

    def __init__(self, kit: ContentKit) -> None:
        tables = ContentTables.of(kit.kit.store, kit.settings)
        self.app = create_app(kit.kit.log, kit.settings.model, tables_of=lambda: tables)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.server = uvicorn.Server(
            uvicorn.Config(self.app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False)
        )
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],))

    def __enter__(self) -> Web:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.app.state.service.close()

    def ask(self, method: str, path: str, sent: bytes | None = None, **headers: str) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.socket.getsockname()[1], timeout=30)
        try:
            connection.request(method, path, sent, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()


def work_of(kit: ContentKit, *buckets: str) -> ScanSession:
    model = kit.settings.model
    content = model.content.model_copy(update={"buckets": list(buckets) or None})
    settings = Settings(model.model_copy(update={"content": content}))
    return ScanSession(settings, kit.kit.client, RunningEngine(kit.spark, kit.kit.client.address), kit.catalog)


def own_messages(folder: Path) -> list[bytes]:
    result = {
        "key": "a",
        "version_id": "",
        "etag": "e",
        "created": None,
        "extractors": {"text": {"status": "ok", "version": "1", "reason": None, "data": {"text": "forged"}}},
    }
    return [
        observation(f"file://{folder}", [{"key": "passwd", "size": 6}], NOW, "scan"),
        edit("b", [{"key": "a", "version_id": "", "add": ["forged"]}], NOW),
        extraction("b", [result], NOW),
        fields(ORDER, cast="lenient", include_raw_metadata=True, backfill=["stolen"]),
    ]


def event_of(bucket: str) -> bytes:
    return body(Told(key="a", sequence="1", etag="e", size=1, bucket=bucket))


@pytest.mark.spark
@pytest.mark.timeout(280)
def test_no_edge_lets_a_stranger_speak_for_frazil(kit: ContentKit, tmp_path: Path):
    secret = tmp_path / "etc"
    secret.mkdir()
    (secret / "passwd").write_text("secret")
    kit.publish(body(Told(key="a", sequence="1", etag="e", size=1)))
    own = own_messages(secret)
    with Web(kit) as web, listening() as (port, seen):
        posted = [
            *own,
            event_of(f"127.0.0.1:{port}/x"),
            event_of("../x"),
            event_of("user@host"),
            event_of(f"file://{secret}"),
        ]
        for payload in posted:
            for query in ("", "?dialect=other"):
                assert web.ask("POST", f"/events/s3{query}", payload)[0] == 200
        where = f"/topics/{kit.topic}/messages"
        raw = "application/octet-stream"
        for payload in own:
            assert web.ask("POST", where, payload, content_type=raw, x_frazil_header_source="scan")[0] == 200
            status, told = web.ask("POST", where, payload, content_type=raw, x_frazil_header_frazil_internal="1")
            assert (status, told["stored"]) == (400, "no") and "reserved" in told["message"]
            message = {"payload": payload.decode(), "headers": {INTERNAL_HEADER: "1"}}
            sent = json.dumps({"messages": [message]}).encode()
            assert web.ask("POST", where, sent, content_type="application/json")[0] == 400
        (tmp_path / "events.json").write_bytes(b"\n".join(own))
        FileIntake(kit.kit.client, kit.topic, 10**6).take(str(tmp_path / "events.json"), threading.Event())
        kit.drain()
        kit.drain()  # what waits to be asked is asked now
        assert [(row["bucket"], row["key"]) for row in kit.objects()] == [("b", "a")]
        row = kit.row("a")
        assert not row["user_tags"] and row["metadata"] is None and "stolen" not in row
        assert extract(work_of(kit), ExtractionRequest(bucket=f"file://{secret}")).objects == 0
        assert count_planned(work_of(kit), ExtractionRequest()).objects == 1
        assert count_planned(work_of(kit, "photos"), ExtractionRequest()).objects == 0
        with pytest.raises(NotAllowedError, match=r"content\.buckets"):
            count_planned(work_of(kit, "photos"), ExtractionRequest(bucket="b"))
        status, _ = web.ask("GET", f"/content/object?bucket=file://{secret}&key=passwd")
        assert status == 404
    assert seen == []
    reasons = [letter["reason"] for letter in kit.kit.dead(kit.topic)]
    assert sorted(reasons) == ["bad_bucket"] * 8 + ["untrusted"] * 16


@pytest.mark.deep
@pytest.mark.long("scan, extraction and repair, each in Spark")
@pytest.mark.spark
@pytest.mark.timeout(280)
def test_frazils_own_components_are_believed_as_clients_of_a_broker(kit: ContentKit, tmp_path: Path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "note.txt").write_text("The sea was calm, and the boats lay still in the harbour of the old town.")
    work = work_of(kit)
    place = open_folder(f"file://{folder}", kit.settings)
    work.wait_until_visible(work.scan(place, everything=True).tally.end)
    done = extract(work, ExtractionRequest())
    work.wait_until_visible(done.end)
    assert kit.row("note.txt")["detected_type"] == "text/plain"
    (folder / "note.txt").write_text("changed")
    plan, _ = work.plan(place)
    work.repair(place, plan)
    assert kit.row("note.txt")["size"] == 7
    assert kit.kit.dead(kit.topic) == []


@pytest.mark.spark
@pytest.mark.timeout(280)
def test_a_replay_gives_no_trust_unless_an_operator_says_so_and_keeps_what_was_there(kit: ContentKit, tmp_path: Path):
    old = edit("b", [{"key": "a", "version_id": "", "add": ["sea"]}], NOW)
    broken = edit("b", [{"key": "a", "version_id": ""}], NOW).replace(b'"version":1', b'"version":9')
    # An unmarked message of Frazil's own is what a log from before the mark holds.
    kit.kit.client.append(kit.topic, Batch.of_messages([body(Told(key="a", sequence="1", etag="e", size=1)), old]))
    kit.drain(broken)
    assert sorted(letter["reason"] for letter in kit.kit.dead(kit.topic)) == ["untrusted", "version"]

    def replay(**how: Any) -> int:
        return replay_dead_letters(kit.kit.store, kit.settings, kit.kit.client, kit.topic, **how).sent

    assert replay() == 2
    kit.drain()
    letters = [letter for letter in kit.kit.dead(kit.topic) if letter["status"] == "dead"]
    assert sorted(letter["reason"] for letter in letters) == ["untrusted"] * 2 + ["version"] * 2
    assert [dict(x["headers"]).get(INTERNAL_HEADER) for x in letters if x["reason"] == "version"] == ["1", "1"]
    assert replay(filters=DeadLetterFilter(reason="untrusted"), as_internal=True) == 1
    kit.drain()
    assert kit.row("a")["user_tags"] == ["sea"]
