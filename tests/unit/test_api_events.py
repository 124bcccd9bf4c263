"""`POST /events/s3`, in this process: what is stored, what is answered, and what is refused with nothing stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from frazil.api.app import create_app
from frazil.content.names import CONTENT
from frazil.content.topic import ensure_topic
from frazil.errors import NotFoundError, UnavailableError
from frazil.log import Batch, Level, Log, decode_chunk
from frazil.settings.model import ContentSettings, LogSettings, SettingsModel

EVENT = b'{"Records": [{"eventName": "s3:ObjectCreated:Put", "s3": {"object": {"key": "a%2Fb+c"}}}]}'
TOPIC = "content_events"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    def __init__(self, log: Log, settings: SettingsModel) -> None:
        self.log = log
        self.app = create_app(log, settings)

    async def send(self, method: str, query: str, body: bytes, headers: dict[str, str]) -> Answer:
        """One request, as uvicorn would hand it over."""
        sent: list[dict[str, Any]] = []
        pieces = [{"type": "http.request", "body": body, "more_body": False}]
        given = {"host": "127.0.0.1", "content-length": str(len(body))} | headers
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": "/events/s3", "raw_path": b"/events/s3", "query_string": query.encode(), "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in given.items()],
            "server": ("127.0.0.1", 8000), "client": ("127.0.0.1", 50000), "state": {},
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return pieces.pop() if pieces else {"type": "http.disconnect"}

        async def note(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, note)
        found = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, b"".join(m.get("body", b"") for m in sent[1:]))

    def ask(self, method: str, query: str = "", body: bytes = b"", **headers: str) -> Answer:
        return asyncio.run(self.send(method, query, body, {k.replace("_", "-"): v for k, v in headers.items()}))

    def post(self, body: bytes, query: str = "", **headers: str) -> Answer:
        return self.ask("POST", query, body, **headers)

    def stored(self) -> list[tuple[bytes, dict[str, str]]]:
        try:
            info = self.log.info(TOPIC)
        except NotFoundError:
            return []
        tables = [decode_chunk(chunk, info.view) for chunk in self.log.chunks(TOPIC, 0)]
        rows = [row for table in tables for row in table.select(["payload", "headers"]).to_pylist()]
        return [(row["payload"], dict(row["headers"] or ())) for row in rows]


@contextmanager
def serving(folder: Path, **content: Any) -> Iterator[Server]:
    log_settings = LogSettings(max_message_size=4096, sync_mode="none")
    settings = SettingsModel(home=folder, cache=folder, log=log_settings, content=ContentSettings(**content))
    with Log.open(folder, log_settings) as log:
        server = Server(log, settings)
        try:
            yield server
        finally:
            server.app.state.service.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as found:
        yield found


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path, token="sésame öffne") as found:
        yield found


def test_an_event_is_stored_as_it_is_and_on_disk_when_it_is_answered(server):
    answer = server.post(EVENT, content_type="application/json; charset=utf-8")
    assert answer.status == 200
    assert answer.json == {"topic": TOPIC, "offset": 0, "count": 1, "level": Level.disk, "note": None}
    assert server.log.info(TOPIC).end == 1  # the visible end: synced, although sync_mode is none
    assert server.stored() == [(EVENT, {})]


def test_the_topic_is_made_by_the_first_event_and_a_deleted_one_again(server):
    assert server.log.topics() == []
    for _ in range(2):
        server.post(EVENT)
        info = server.log.info(TOPIC)
        assert (info.storage, list(info.sinks), info.end) == ("log", [CONTENT], 1)
        server.log.delete_topic(TOPIC)


def test_a_topic_that_is_there_keeps_its_sinks(server):
    server.log.create_topic(TOPIC)
    server.log.configure(TOPIC, {"sinks": ["other"]})
    server.post(EVENT)
    assert list(server.log.info(TOPIC).sinks) == ["other", CONTENT]


def test_what_is_no_event_is_stored_too_for_the_dead_letters(server):
    assert server.post(b"\xff not JSON").status == 200
    assert server.stored() == [(b"\xff not JSON", {})]


def test_the_dialect_of_the_address_goes_with_the_message(server):
    assert server.post(EVENT, "dialect=ceph").status == 200
    assert server.stored() == [(EVENT, {"dialect": "ceph"})]


def test_an_unknown_dialect_is_refused_and_the_answer_lists_those_there_are(server):
    answer = server.post(EVENT, "dialect=azure")
    assert answer.status == 400
    assert "dialect" in answer.json["message"] and "'versitygw'" in answer.json["cause"]
    assert server.stored() == []


def test_every_dialect_of_the_settings_can_be_named(server):
    schema = server.app.openapi()["paths"]["/events/s3"]["post"]["parameters"][0]["schema"]
    wanted = ContentSettings.model_json_schema()["properties"]["dialect"]["enum"]
    assert next(kind["enum"] for kind in schema["anyOf"] if "enum" in kind) == wanted


def test_an_empty_body_is_a_probe_and_answered_without_storing(server):
    for body in (b"", b" \n"):
        answer = server.post(body)
        assert (answer.status, answer.json["count"], answer.json["offset"]) == (200, 0, None)
    assert server.log.topics() == []


def test_head_answers_and_get_is_not_meant(server):
    assert (server.ask("HEAD").status, server.ask("HEAD").body) == (200, b"")
    assert server.ask("GET").status == 405


def test_a_body_over_the_size_of_a_message_is_refused(server):
    answer = server.post(b"x" * 4097)
    assert (answer.status, answer.json["stored"]) == (413, "no")
    assert server.post(b"x" * 4096).status == 200
    assert len(server.stored()) == 1


@pytest.mark.parametrize(
    ("query", "authorization"),
    [
        ("", "Bearer sésame öffne"),
        ("", "bearer sésame öffne"),
        ("", "sésame öffne"),
        ("token=s%C3%A9same+%C3%B6ffne", None),
        ("token=s%C3%A9same%20%C3%B6ffne", "Basic bm9ib2R5"),
    ],
)
def test_a_right_token_opens_wherever_it_stands(guarded, query, authorization):
    headers = {} if authorization is None else {"authorization": authorization}
    assert guarded.ask("HEAD", query, **headers).status == 200
    assert guarded.post(EVENT, query, **headers).status == 200
    assert len(guarded.stored()) == 1


@pytest.mark.parametrize(
    ("query", "authorization"),
    [
        ("", None),
        ("token=", None),
        ("token=sesame", None),
        ("", "Bearer "),
        ("", "Bearer sesame"),
        ("", "Basic sésame öffne"),
        ("token=%FF", "Bearer \U0001f600"),
    ],
)
def test_a_wrong_token_stores_nothing_and_is_not_repeated_to_anybody(guarded, query, authorization):
    headers = {} if authorization is None else {"authorization": authorization}
    with structlog.testing.capture_logs() as logged:
        answer = guarded.post(EVENT, query, **headers)
    assert (answer.status, answer.json["error"], answer.json["stored"]) == (401, "CredentialsError", "no")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "sésame" not in answer.body.decode() + str(logged)
    assert guarded.ask("HEAD", query, **headers).status == 401
    assert guarded.log.topics() == []


def test_an_empty_token_asks_for_none(tmp_path):
    with serving(tmp_path, token="") as server:
        assert server.post(EVENT).status == 200


CONFIRMATION = {
    "Type": "SubscriptionConfirmation",
    "TopicArn": "arn:aws:sns:eu-west-1:123456789012:photos",
    "Token": "2336412f37fb687f5d51e6e2425",
    "SubscribeURL": "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&Token=2336412f37fb687f5d51e6e2425",
}


@pytest.mark.parametrize("by_header", [True, False])
def test_sns_is_not_confirmed_by_itself_but_the_log_says_how(server, by_header):
    headers = {"x-amz-sns-message-type": "SubscriptionConfirmation"} if by_header else {}
    with structlog.testing.capture_logs() as logged:
        answer = server.post(json.dumps(CONFIRMATION).encode(), **headers)
    assert (answer.status, answer.json["count"]) == (200, 0)
    assert "SubscriptionConfirmation" in answer.json["note"]
    (told,) = logged
    assert (told["log_level"], told["host"]) == ("warning", "sns.eu-west-1.amazonaws.com")
    assert told["run"] == (
        "aws sns confirm-subscription --topic-arn arn:aws:sns:eu-west-1:123456789012:photos "
        "--token 2336412f37fb687f5d51e6e2425"
    )
    assert server.log.topics() == []


def test_a_forged_confirmation_brings_no_command_into_the_log(server):
    forged = CONFIRMATION | {"Token": "x; rm -rf /", "SubscribeURL": "http://[bad"}
    with structlog.testing.capture_logs() as logged:
        assert server.post(json.dumps(forged).encode()).status == 200
    assert "rm -rf" not in str(logged)


def test_an_end_of_a_subscription_is_told(server):
    with structlog.testing.capture_logs() as logged:
        server.post(json.dumps(CONFIRMATION | {"Type": "UnsubscribeConfirmation"}).encode())
    assert "no event comes any more" in logged[0]["event"]


def test_an_event_about_an_object_named_confirmation_is_an_event(server):
    body = b'{"Type": "Notification", "Message": "SubscriptionConfirmation"}'
    assert server.post(body).json["count"] == 1


def test_a_hundred_at_once_share_commits_and_each_gets_its_own_offset(server, monkeypatch):
    bodies = [b'{"n": %d}' % n for n in range(100)]

    async def all_at_once() -> list[Answer]:
        return await asyncio.gather(*(server.send("POST", "", body, {}) for body in bodies))

    # Else each would wait for a thread that makes the topic, and they would not come at once.
    ensure_topic(server.log, TOPIC)
    batches: list[Batch] = []
    append = server.log.append_async
    monkeypatch.setattr(server.log, "append_async", lambda t, b, level: batches.append(b) or append(t, b, level))
    answers = asyncio.run(all_at_once())
    stored = [payload for payload, _ in server.stored()]
    assert sorted(stored) == sorted(bodies)
    assert all(stored[answer.json["offset"]] == body for answer, body in zip(answers, bodies, strict=True))
    # What comes while one batch is on its way goes with the next; each by itself would be 100.
    assert len(batches) <= 10


def test_a_failing_log_is_answered_with_503_for_every_event_of_the_batch(server, monkeypatch):
    server.post(EVENT)

    def full(*_args: object) -> None:
        raise UnavailableError("the log is full", hint="wait")

    monkeypatch.setattr(server.log, "append_async", full)

    async def some_at_once() -> list[Answer]:
        return await asyncio.gather(*(server.send("POST", "", EVENT, {}) for _ in range(5)))

    for answer in asyncio.run(some_at_once()):
        assert (answer.status, answer.headers["retry-after"], answer.json["stored"]) == (503, "1", "no")
    monkeypatch.undo()
    assert server.post(EVENT).json["offset"] == 1


def test_a_stopping_server_takes_nothing(server):
    server.app.state.service.stop()
    assert (server.post(EVENT).status, server.ask("HEAD").status) == (503, 503)
