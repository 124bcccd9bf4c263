"""What HTTP refuses over a socket: long numbers, other charsets, pages of other sites. And what the log shows of it."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.e2e.servers import JSON, RAW, Answer, Server, serving

DIGITS = "7" * 5000
TOKEN = "token-that-no-log-shows"
EVENTS = {**JSON, "Authorization": f"Bearer {TOKEN}"}
NDJSON = {"Content-Type": "application/x-ndjson"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from tests.e2e.conftest import Shell

    base = tmp_path_factory.mktemp("refusals")
    for name in ("home", "work"):
        (base / name).mkdir()
    shell = Shell(base / "work", base / "home", {"FRAZIL_CONTENT__TOKEN": TOKEN})
    with serving(shell, "--set", "topics.storage=log", "-v") as running:
        yield running


@pytest.fixture
def topic(server: Server) -> str:
    name = f"t{next(_numbers)}"
    server.create(name)
    return name


def post(server: Server, topic: str, body: bytes, headers: dict[str, str], query: str = "") -> Answer:
    return server.ask("POST", f"/topics/{topic}/messages{query}", body, headers)


LONG_NUMBERS = [
    ("POST", "messages", {**RAW, "X-Frazil-Crc32": DIGITS}, b"a"),
    ("POST", f"messages?request_id={DIGITS}", RAW, b"a"),
    ("POST", f"messages?request_id={2**64}", RAW, b"a"),
    ("POST", f"messages?producer_id={DIGITS}&producer_epoch=1&sequence=1", RAW, b"a"),
    ("POST", "messages", JSON, b'{"messages": [{"payload_json": %s}]}' % DIGITS.encode()),
    ("POST", "messages", JSON, b'{"messages": [{"payload": "a", "request_id": %s}]}' % DIGITS.encode()),
    ("POST", "messages", JSON, b'{"messages": [{"payload": "a", "columns": {"n": %s}}]}' % DIGITS.encode()),
    ("POST", "messages", NDJSON, b'{"payload_json": {"deep": [%s]}}' % DIGITS.encode()),
    ("POST", "messages", NDJSON, b'{"payload_json": -%s}' % DIGITS.encode()),
    ("GET", f"messages?from={DIGITS}", {}, None),
    ("GET", f"messages?limit={DIGITS}", {}, None),
    ("GET", f"messages?max_bytes={DIGITS}", {}, None),
    ("GET", f"tail?from={DIGITS}", {}, None),
    ("GET", f"tail?heartbeat={DIGITS}", {}, None),
    ("GET", "tail", {"Last-Event-ID": DIGITS}, None),
    ("GET", "tail", {"Last-Event-ID": str(2**63)}, None),
    ("PATCH", "", JSON, b'{"retention_age_s": %s}' % DIGITS.encode()),
    ("PATCH", "", JSON, b'{"retention_bytes": %s}' % DIGITS.encode()),
    ("PUT", "subscriptions/s", JSON, b'{"offset": %s}' % DIGITS.encode()),
    ("POST", "/content/edits", EVENTS, b'{"bucket": "b", "edits": [{"key": "k", "rating": %s}]}' % DIGITS.encode()),
]


@pytest.mark.parametrize(("method", "path", "headers", "body"), LONG_NUMBERS, ids=range(len(LONG_NUMBERS)))
def test_a_number_of_5000_digits_is_refused_as_any_wrong_value(server, topic, method, path, headers, body):
    path = path if path.startswith("/") else f"/topics/{topic}/{path}".rstrip("/")
    answer = server.ask(method, path, body, headers)
    assert 400 <= answer.status < 500, (answer.status, answer.body[:300])
    assert len(answer.body) < 2000, "the answer does not repeat the number"
    assert server.get(f"/topics/{topic}")["end"] == 0
    if method == "POST":
        assert answer.json["stored"] == "no"


def test_every_query_parameter_survives_a_number_of_5000_digits(server, topic):
    paths = server.get("/openapi.json")["paths"]
    wrong = []
    for path, operations in paths.items():
        for given in operations.get("get", {}).get("parameters", []):
            if given["in"] == "query":
                place = path.replace("{topic}", topic).replace("{name}", "x")
                answer = server.ask("GET", f"{place}?bucket=b&key=k&{given['name']}={DIGITS}")
                wrong += [(place, given["name"], answer.body[:200])] if answer.status == 500 else []
    assert wrong == []


def test_an_event_with_a_number_of_5000_digits_is_taken_as_it_is(server):
    """It is no event of a store, which the sink says in its dead letter; the webhook takes everything."""
    assert server.ask("POST", "/events/s3", b'{"Records": [%s]}' % DIGITS.encode(), EVENTS).status == 200
    told = server.ask("POST", "/events/s3", b'{"Type": "SubscriptionConfirmation", "n": %s}' % DIGITS.encode(), EVENTS)
    assert told.status == 200


@pytest.mark.parametrize("path", ["/topics/{topic}/messages", "/events/s3", "/content/edits"])
@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_a_body_in_another_charset_is_refused(server, topic, path, kind):
    body = json.dumps({"payload": "a"}).encode("utf-16")
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": f'{kind}; charset="UTF-16"'}
    answer = server.ask("POST", path.format(topic=topic), body, headers)
    assert answer.status == 415 and answer.json["stored"] == "no"
    if kind == "application/json" or path != "/content/edits":
        assert "utf-16" in answer.json["message"] and "utf-8" in answer.json["hint"].lower()


def test_utf_8_may_be_named(server, topic):
    for charset in ("utf-8", "UTF8", '"us-ascii"'):
        headers = {"Content-Type": f"application/json; charset={charset}"}
        assert post(server, topic, b'{"messages": [{"payload": "a"}]}', headers).status == 200


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/topics/{topic}/messages?level=tape", RAW),
        ("/topics/{topic}/messages?sequence=x", RAW),
        ("/topics/{topic}/messages", {**RAW, "Sec-Fetch-Site": "cross-site"}),
        ("/events/s3?dialect=klingon", EVENTS),
        ("/events/s3", JSON),
        ("/content/edits", {**EVENTS, "Origin": "http://evil.example"}),
    ],
)
def test_each_refused_publish_request_says_that_nothing_is_stored(server, topic, path, headers):
    answer = server.ask("POST", path.format(topic=topic), b"{}", headers)
    assert 400 <= answer.status < 500
    assert (answer.json["acknowledged"], answer.json["stored"]) == (0, "no")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://evil.example", "Host": "evil.example"},
        {"Host": "["},
        {"Host": ""},
    ],
)
def test_a_page_of_another_origin_is_kept_out(server, topic, headers):
    assert post(server, topic, b"a", {**RAW, **headers}).status == 403
    assert server.get(f"/topics/{topic}")["end"] == 0


def test_a_page_of_this_server_is_let_in(server, topic):
    assert post(server, topic, b"a", {**RAW, "Origin": server.http}).status == 200
    assert post(server, topic, b"a", {**RAW, "Origin": server.http, "Sec-Fetch-Site": "same-origin"}).status == 200


def test_a_server_whose_catalog_is_away_is_not_ready_before_the_first_message(shell):
    away = ("--set", "catalog.uri=http://127.0.0.1:9", "--set", "network.retry_attempts=1")
    with serving(shell, *away) as server:
        assert server.ask("POST", "/topics/orders").status == 201
        ready = server.ask("GET", "/readyz")
        assert ready.status == 503 and "topic 'orders' takes no messages" in ready.json["message"]
        assert post(server, "orders", b"x", RAW).status == 503


def test_no_log_shows_the_token_or_a_body(server, topic):
    """Runs last: the server has seen the token in headers, in queries and beside bodies that it refused."""
    for headers in (EVENTS, {**EVENTS, "X-Frazil-Crc32": DIGITS}, {"Authorization": "Bearer wrong-" + TOKEN}):
        server.ask("POST", "/events/s3", b"body-that-no-log-shows", headers)
        server.ask("POST", f"/events/s3?token={TOKEN}&dialect=x", b"body-that-no-log-shows", headers)
    assert TOKEN not in server.errors and "body-that-no-log-shows" not in server.errors
