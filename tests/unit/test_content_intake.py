"""Events from files and from a queue: nothing is let go before it is durable, and what is wrong stops nothing else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from frazil.content.intake.files import FileIntake, check_files
from frazil.content.intake.json_documents import Splitter
from frazil.content.intake.queue import Queue, open_queue
from frazil.content.intake.sqs import Polling, SqsIntake
from frazil.content.names import CONTENT
from frazil.content.topic import ensure_topic
from frazil.errors import (
    CredentialsError,
    FrazilError,
    InterruptedByUser,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from frazil.log import Batch, Log, decode_chunk
from frazil.settings.model import LogSettings, NetworkSettings, S3Settings

TOPIC = "content_events"
GOES_ON = threading.Event()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(tmp_path / "log", LogSettings(max_message_size=1000)) as opened:
        ensure_topic(opened, TOPIC)
        yield opened


def stored(log: Log) -> list[tuple[bytes, dict[str, str]]]:
    view = log.info(TOPIC).view
    rows = [row for chunk in log.chunks(TOPIC, 0) for row in decode_chunk(chunk, view).to_pylist()]
    return [(row["payload"], dict(row["headers"])) for row in rows]


def payloads(log: Log) -> list[bytes]:
    return [payload for payload, _ in stored(log)]


# -- the topic ---------------------------------------------------------------------------------------------------------


def test_many_may_make_the_topic_at_once(tmp_path):
    with Log.open(tmp_path) as log, ThreadPoolExecutor(8) as pool:
        infos = list(pool.map(lambda _: ensure_topic(log, TOPIC), range(16)))
    assert {tuple(info.sinks) for info in infos} == {(CONTENT,)}
    assert len({info.log_id for info in infos}) == 1


# -- lines -------------------------------------------------------------------------------------------------------------


def split(data: bytes, size: int | None = None, limit: int = 1000) -> tuple[list[tuple[bytes, bool]], int]:
    splitter = Splitter(limit)
    size = size or max(1, len(data))
    found = [piece for at in range(0, len(data), size) for piece in splitter.feed(data[at : at + size])]
    found += splitter.finish()
    return [(piece.payload, piece.is_json) for piece in found], splitter.too_large


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", []),
        (b" \n\r\n", []),
        (b"[]", []),
        (b'{"a": 1}\n{"b": 2}\n', [(b'{"a": 1}', True), (b'{"b": 2}', True)]),
        (b'{"a": 1}\r\n\r\n{"b": 2}', [(b'{"a": 1}', True), (b'{"b": 2}', True)]),
        (b'\xef\xbb\xbf{"a": 1}', [(b'{"a": 1}', True)]),
        (b'[{"a": 1}, {"b": [2]}]', [(b'{"a": 1}', True), (b'{"b": [2]}', True)]),
        (b'[\n  {\n    "a": 1\n  },\n  {}\n]\n', [(b'{\n    "a": 1\n  }', True), (b"{}", True)]),
        (b'{\n "a": "}\\n{[,"\n}\n{"b": 2}', [(b'{\n "a": "}\\n{[,"\n}', True), (b'{"b": 2}', True)]),
        (b'{"Records": [\n{"a": 1},\n{"b": 2}\n]}\n', [(b'{"Records": [\n{"a": 1},\n{"b": 2}\n]}', True)]),
        (b'{"a": "\xff"}\n{"b": 2}', [(b'{"a": "\xff"}', False), (b'{"b": 2}', True)]),
    ],
)
def test_documents_lines_and_arrays_are_told_apart_by_themselves(data, found):
    for size in (None, 1, 3, 7):
        assert split(data, size) == (found, 0)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"a": 1\n{"b": 2}\n', [(b'{"a": 1', False), (b'{"b": 2}', True)]),
        (b'{"a": [\n{"b": 2}\n{"c": 3}', [(b'{"a": [', False), (b'{"b": 2}', True), (b'{"c": 3}', True)]),
        (b'{"a": "x\n{"b": 2}', [(b'{"a": "x', False), (b'{"b": 2}', True)]),
        (b'[INFO] start\n{"b": 2}\nend', [(b"[INFO] start", False), (b'{"b": 2}', True), (b"end", False)]),
        (b'[{"a": 1},\noops,\n{"b": 2}]', [(b'{"a": 1}', True), (b"oops,", False), (b'{"b": 2}', True)]),
        (b'{"a": 1}} \n{"b": 2}', [(b'{"a": 1}', True), (b"}", False), (b'{"b": 2}', True)]),
        (b'null\n7\n"x"\n{"b"', [(b"null", False), (b"7", False), (b'"x"', False), (b'{"b"', False)]),
        (b'{"a": %b}\n{"b": 2}' % (b"9" * 5000), [(b'{"b": 2}', True)]),
        (b"%b\n%b" % (b'{"a":' * 150, b'{"b": 2}'), [(b'{"a":' * 150, False), (b'{"b": 2}', True)]),
    ],
)
def test_a_bad_line_is_a_message_of_its_own_and_the_others_are_not_touched(data, found):
    for size in (None, 1, 3, 7):
        assert split(data, size)[0] == found


def test_what_no_message_can_hold_is_dropped_and_counted_and_memory_stays_small():
    splitter = Splitter(1000)
    for _ in range(1000):
        assert list(splitter.feed(b'{"a": "' + b"x" * 1000)) == []
        assert len(splitter._text) <= 2014
    assert [p.payload for p in splitter.feed(b'"}\n{"b": 2}\n')] == [b'{"b": 2}']
    assert splitter.too_large == 1


values = st.integers() | st.text(max_size=8) | st.lists(st.none() | st.booleans(), max_size=2)
documents = st.dictionaries(st.text(max_size=5), values, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(documents, max_size=8), st.sampled_from([None, 0, 2]), st.booleans(), st.integers(1, 40))
def test_whatever_is_written_as_json_is_read_again(values, indent, as_array, size):
    if as_array:
        data = json.dumps(values, indent=indent).encode()
    else:
        data = "\n".join(json.dumps(value, indent=indent, ensure_ascii=False) for value in values).encode()
    found, too_large = split(data, size, limit=10_000)
    assert [json.loads(payload) for payload, _ in found] == values
    assert all(is_json for _, is_json in found) and not too_large


@example([b"\xc2", b"\n", b"\x80"])
@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=12) | st.sampled_from([b'{"a":', b"{}", b"[", b"]", b",", b'"', b"\n"]), max_size=20)
)
def test_of_whatever_bytes_nothing_but_space_brackets_and_commas_is_lost(parts):
    data = b"".join(parts)
    found, _ = split(data, 5)
    # One by one: the halves of a letter on two lines are no letter.
    assert "".join(solid(payload) for payload, _ in found) == solid(data.removeprefix(b"\xef\xbb\xbf"))


def solid(data: bytes) -> str:
    text = data.decode("utf-8", "surrogateescape")
    return "".join(letter for letter in text if letter not in ",[]" and not letter.isspace())


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_are_taken_one_after_the_other_with_their_source_and_dialect(log, tmp_path):
    (tmp_path / "a").write_bytes(b'{"n": 1}\nbad\n')
    (tmp_path / "b").write_bytes(b'[{"n": 2}]')
    intake = FileIntake(log, TOPIC, 1000, "aws")
    for name in ("a", "b"):
        intake.take(str(tmp_path / name), GOES_ON)
    header = {"source": "file", "dialect": "aws"}
    assert stored(log) == [(b'{"n": 1}', header), (b"bad", header), (b'{"n": 2}', header)]
    assert intake.to_dict() == {
        "topic": TOPIC, "messages": 3, "bytes": 19, "first_offset": 0, "last_offset": 2, "not_json": 1, "too_large": 0,
    }  # fmt: skip


def test_a_large_file_goes_in_several_batches(log, tmp_path, monkeypatch):
    lines = b"".join(b'{"n": %d, "pad": "%b"}\n' % (n, b"x" * 900) for n in range(3000))
    (tmp_path / "a").write_bytes(lines)
    intake = FileIntake(log, TOPIC, 1000)
    batches: list[Batch] = []
    append = log.append
    monkeypatch.setattr(log, "append", lambda t, b, level, **how: batches.append(b) or append(t, b, level, **how))
    intake.take(str(tmp_path / "a"), GOES_ON)
    assert b"\n".join(payloads(log)) + b"\n" == lines
    assert 3 <= len(batches) <= 6


def test_names_are_checked_before_anything_is_read(tmp_path):
    good = tmp_path / "a"
    good.write_bytes(b"{}")
    with pytest.raises(NotFoundError, match="there is no file"):
        check_files([str(good), str(tmp_path / "missing")])
    with pytest.raises(UsageError, match="is a folder"):
        check_files(["-", str(tmp_path)])


def test_an_intake_that_is_to_stop_says_so(log, tmp_path):
    (tmp_path / "a").write_bytes(b"{}")
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedByUser):
        FileIntake(log, TOPIC, 1000).take(str(tmp_path / "a"), stop)


# -- the queue ---------------------------------------------------------------------------------------------------------


def refused(code: str, status: int = 400) -> ClientError:
    told = {"Error": {"Code": code, "Message": "…"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(told, "Receive")  # type: ignore[arg-type]


class FakeSqs:
    """A queue in memory. What is given out is hidden until `show`; `faults` fail the next calls of a name."""

    def __init__(self, *bodies: str) -> None:
        self.waiting = {str(n): body for n, body in enumerate(bodies)}
        self.hidden: dict[str, str] = {}
        self.faults: dict[str, list[Exception | dict[str, Any]]] = {}
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda _name: None
        self.visibility_s = 30.0
        self._lock = threading.Lock()

    def _begin(self, name: str) -> dict[str, Any] | None:
        self.before(name)
        with self._lock:
            self.calls.append(name)
            fault = self.faults[name].pop(0) if self.faults.get(name) else None
        if isinstance(fault, Exception):
            raise fault
        return fault

    def get_queue_attributes(self, **_: object) -> dict[str, Any]:
        self._begin("attributes")
        return {"Attributes": {"VisibilityTimeout": str(self.visibility_s)}}

    def receive_message(self, *, MaxNumberOfMessages: int, WaitTimeSeconds: int, **_: object) -> dict[str, Any]:  # noqa: N803
        self._begin("receive")
        with self._lock:
            handles = list(self.waiting)[:MaxNumberOfMessages]
            self.hidden |= {handle: self.waiting.pop(handle) for handle in handles}
        if not handles:
            time.sleep(min(0.01, WaitTimeSeconds))
            return {}
        return {"Messages": [{"Body": self.hidden[handle], "ReceiptHandle": handle} for handle in handles]}

    def delete_message_batch(self, *, Entries: list[dict[str, str]], **_: object) -> dict[str, Any]:  # noqa: N803
        answer = self._begin("delete") or {}
        failed = {entry["Id"] for entry in answer.get("Failed", ())}
        with self._lock:
            for entry in Entries:
                if entry["Id"] not in failed:
                    del self.hidden[entry["ReceiptHandle"]]
        return answer

    def change_message_visibility_batch(self, *, Entries: list[dict[str, str]], **_: object) -> None:  # noqa: N803
        self._begin("give back")
        self.show()

    def show(self) -> None:
        with self._lock:
            self.waiting, self.hidden = self.waiting | self.hidden, {}


def take(sqs: FakeSqs, log: Any, stop: threading.Event | None = None, **polling: Any) -> SqsIntake:
    chosen = Polling(**({"until_empty": True, "wait_s": 1, "patience_s": 60.0} | polling))
    intake = SqsIntake(Queue(sqs, "https://sqs.eu-west-1.amazonaws.com/1/q"), log, TOPIC, chosen)
    intake.run(stop or threading.Event())
    return intake


def test_what_is_durable_is_deleted(log):
    sqs = FakeSqs(*(f'{{"n": {n}}}' for n in range(25)))
    intake = take(sqs, log, receivers=3)
    assert sorted(payloads(log)) == sorted(b'{"n": %d}' % n for n in range(25))
    assert (sqs.waiting, sqs.hidden) == ({}, {})
    assert intake.to_dict() == {
        "topic": TOPIC, "messages": 25, "bytes": 215, "first_offset": 0, "last_offset": 24,
        "deleted": 25, "undeleted": 0, "refused": 0,
    }  # fmt: skip
    assert stored(log)[0][1] == {"source": "sqs"}


class Failing:
    """A log that fails the next appends."""

    def __init__(self, log: Log, *errors: FrazilError) -> None:
        self._log, self._errors = log, list(errors)

    def append(self, *args: Any, **how: Any) -> Any:
        if self._errors:
            raise self._errors.pop(0)
        return self._log.append(*args, **how)


def test_nothing_is_deleted_that_the_log_did_not_take(log):
    sqs = FakeSqs("{}", "{}")
    with pytest.raises(FrazilError, match="a sync has failed"):
        take(sqs, Failing(log, FrazilError("a sync has failed")))
    assert "delete" not in sqs.calls
    assert len(sqs.hidden) == 2 and payloads(log) == []


def test_a_log_that_is_away_for_a_moment_is_waited_for(log):
    sqs = FakeSqs("{}", "{}")
    intake = take(sqs, Failing(log, *[UnavailableError("the broker restarts")] * 2))
    assert (intake.taken.messages, intake.deleted, sqs.hidden) == (2, 2, {})


def test_a_log_that_stays_away_ends_it_and_the_messages_stay(log):
    sqs = FakeSqs("{}")
    with pytest.raises(UnavailableError, match="the broker is gone"):
        take(sqs, Failing(log, *[UnavailableError("the broker is gone")] * 1000), patience_s=0.4)
    assert len(sqs.hidden) == 1 and "delete" not in sqs.calls


def test_messages_that_others_may_see_again_are_let_go(log):
    """The log comes back after the messages are visible again: they are taken when the queue gives them anew."""
    sqs = FakeSqs("{}")
    sqs.visibility_s = 0.15
    away = Failing(log, *[UnavailableError("the log is full")] * 3)
    sqs.before = lambda name: sqs.show() if name == "receive" else None
    intake = take(sqs, away, patience_s=30)
    assert sqs.calls.count("receive") >= 3  # at first, again, and the one that finds nothing
    assert (intake.taken.messages, intake.deleted) == (1, 1)


def test_what_cannot_be_deleted_comes_twice_and_is_counted(log):
    sqs = FakeSqs("one", "two")
    stays = {"Failed": [{"Id": "0", "SenderFault": True, "Code": "ReceiptHandleIsInvalid"}]}
    sqs.faults["delete"] = [dict(stays), dict(stays)]
    intake = take(sqs, log)
    assert (intake.deleted, intake.undeleted) == (1, 1)
    sqs.show()
    take(sqs, log)
    assert payloads(log) == [b"one", b"two", b"one"]


def test_a_message_that_the_log_never_takes_stays_in_the_queue_alone(log):
    sqs = FakeSqs("x" * 2000, "good")
    intake = take(sqs, log)
    assert payloads(log) == [b"good"]
    assert (intake.refused, intake.deleted, list(sqs.hidden)) == (1, 1, ["0"])


@pytest.mark.parametrize(
    "fault",
    [
        refused("RequestThrottled", 403),
        refused("ThrottlingException"),
        refused("OverLimit", 403),
        refused("InternalFailure", 500),
        EndpointConnectionError(endpoint_url="https://sqs"),
    ],
)
def test_a_busy_queue_is_asked_again(log, fault):
    sqs = FakeSqs("{}")
    sqs.faults["receive"] = [fault]
    intake = take(sqs, log)
    assert (intake.taken.messages, intake.deleted) == (1, 1)


@pytest.mark.parametrize("call", ["attributes", "delete"])
def test_patience_is_the_same_with_every_question(log, call):
    sqs = FakeSqs("{}")
    sqs.faults[call] = [refused("ServiceUnavailable", 503)]
    assert take(sqs, log).deleted == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (refused("AWS.SimpleQueueService.NonExistentQueue"), NotFoundError),
        (refused("com.amazonaws.sqs#QueueDoesNotExist"), NotFoundError),
        (refused("InvalidClientTokenId", 403), CredentialsError),
        (refused("ExpiredToken", 403), CredentialsError),
        (NoCredentialsError(), CredentialsError),
        (refused("AccessDeniedException"), NotAllowedError),
        (refused("InvalidAddress"), UsageError),
    ],
)
@pytest.mark.parametrize("call", ["attributes", "receive", "delete"])
def test_what_patience_does_not_help_ends_it_with_a_clear_error(log, call, fault, kind):
    sqs = FakeSqs("{}")
    sqs.faults[call] = [fault]
    with pytest.raises(kind, match=r"sqs\.eu-west-1") as raised:
        take(sqs, log, receivers=2)
    assert type(raised.value) is kind and raised.value.hint


def test_it_ends_when_it_is_asked_to_and_leaves_nothing_half_done(log):
    sqs = FakeSqs(*["{}"] * 30)
    stop = threading.Event()
    sqs.before = lambda name: stop.set() if name == "delete" else None
    intake = take(sqs, log, stop, until_empty=False)
    assert intake.taken.messages == intake.deleted > 0
    assert len(payloads(log)) == intake.taken.messages


def test_messages_that_come_when_it_ends_are_given_back(log):
    sqs = FakeSqs("{}")
    stop = threading.Event()
    sqs.before = lambda name: stop.set() if name == "receive" else None
    take(sqs, log, stop, until_empty=False)
    end = time.monotonic() + 30  # the receiver that waited for messages was left alone
    while ("give back" not in sqs.calls or not sqs.waiting) and time.monotonic() < end:
        time.sleep(0.01)
    assert "give back" in sqs.calls and len(sqs.waiting) == 1 and payloads(log) == []


def test_it_ends_after_its_time(log):
    began = time.monotonic()
    take(FakeSqs(), log, until_empty=False, for_s=0.3)
    assert 0.2 < time.monotonic() - began < 60


@pytest.mark.parametrize("url", ["nope", "https://sqs.eu-west-1.amazonaws.com", "ftp://host/q", "http://[/q?x=1"])
def test_what_is_no_url_of_a_queue_is_told_before_anything_is_asked(url):
    with pytest.raises(UsageError, match="no URL of a queue"):
        open_queue(url, S3Settings(), NetworkSettings())


@pytest.mark.parametrize(
    ("url", "endpoint_url", "region", "server"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/1/q", None, "eu-west-1", "https://sqs.eu-west-1.amazonaws.com"),
        ("https://sqs.eu-west-1.amazonaws.com/1/q", "http://here:9", "eu-west-1", "http://here:9"),
        ("http://127.0.0.1:4566/1/q", None, "us-east-2", "http://127.0.0.1:4566"),
    ],
)
def test_region_and_server_are_told_from_the_url(url, endpoint_url, region, server):
    queue = open_queue(url, S3Settings(region="us-east-2"), NetworkSettings(), endpoint_url=endpoint_url)
    meta = queue._client.meta
    assert (meta.region_name, meta.endpoint_url) == (region, server)
