"""Rows that wait for an answer of their bucket: each gets its turn, whatever the others do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pyarrow as pa

from frazil.content.columns import TIME
from frazil.content.sink import pending_checks as pending_module
from frazil.content.sink.head_requests import HeadRequests
from frazil.content.sink.pending_checks import AGAIN_S, Due, Pending
from frazil.errors import UnavailableError
from frazil.settings.model import NetworkSettings, S3Settings

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def waiting(*rows: Due) -> pa.Table:
    types = [pa.string(), pa.string(), pa.string(), TIME]
    columns = zip(*rows, strict=True) if rows else [[]] * len(types)
    return pa.table([pa.array(list(c), t) for c, t in zip(columns, types, strict=True)], names=list(Due._fields))


def due(key: str, seconds: float, bucket: str = "b") -> Due:
    return Due(bucket, key, "", NOW + timedelta(seconds=seconds))


def test_rows_that_are_never_answered_do_not_keep_others_from_their_turn(monkeypatch):
    monkeypatch.setattr(pending_module, "_AT_ONCE", 2)
    stuck = [due(key, -100, "stuck") for key in "edcba"]
    rows = waiting(*stuck, due("later", -1), due("future", 90))
    pending = Pending(None)
    turns = [pending.take(rows, NOW) for _ in range(4)]
    assert [[row.key for row in turn] for turn in turns] == [["a", "b"], ["c", "d"], ["e", "later"], []]
    assert pending.waits_s(NOW.timestamp()) == AGAIN_S, "a pass is over"
    assert [row.key for row in pending.take(rows, NOW)] == ["a", "b"], "the next pass"


def test_a_row_that_becomes_due_soon_does_not_wait_for_the_next_pass():
    pending = Pending(None)
    rows = waiting(due("stuck", -1), due("soon", 5))
    assert [row.key for row in pending.take(rows, NOW)] == ["stuck"]
    assert pending.take(rows, NOW) == []
    assert pending.waits_s(NOW.timestamp()) == 5
    assert pending.take(waiting(), NOW) == []
    assert pending.waits_s(NOW.timestamp()) is None


@contextmanager
def failing_store() -> Iterator[tuple[str, list[str]]]:
    """A server that answers each request with an error, and what it was asked for."""
    asked: list[str] = []

    class Failing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_error(503)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_a_store_that_does_not_answer_is_not_asked_for_each_of_many_keys():
    network = NetworkSettings(retry_attempts=1)
    with failing_store() as (url, asked):
        s3 = S3Settings.model_validate({"endpoint": url, "access_key": "a", "secret_key": "b"})
        told, failed = HeadRequests(s3, network).look_up([("b", f"k{number}", "") for number in range(500)])
    assert told.num_rows == 0 and len(failed) == 500
    assert all(isinstance(error, UnavailableError) for error in failed.values())
    assert len(asked) < 50
