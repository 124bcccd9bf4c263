"""The follower of object events where the bucket does not answer: nothing is decided without it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from frazil import followers
from frazil.content.topic import ensure_topic
from frazil.documents.sql.store import SqlDocumentStore
from frazil.errors import NotAllowedError, UnavailableError
from frazil.followers import SUBSCRIPTION, ObjectFollower
from frazil.log import Log
from frazil.log.batch import Batch
from frazil.settings import Settings, load_settings

TOPIC = "content_events"


class Bucket:
    """Answers requests for an object with an error, or says that it does not exist."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.asked = 0

    def find(self, key: str, version_id: str = "") -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def bucket(monkeypatch) -> Bucket:
    made = Bucket()
    monkeypatch.setattr(followers, "open_files", lambda *_args, **_more: made)
    return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    name = f"docs-{uuid.uuid4().hex[:8]}"  # with a breaker of its own
    follow = {f"documents.follow_buckets.{name}.{what}": "true" for what in ("create", "delete")}
    return load_settings(environ={}, flags={"home": str(tmp_path / "home"), "log.min_free": "0", **follow})


def event(settings: Settings, name: str, sequence: int) -> bytes:
    (bucket,) = settings.model.documents.follow_buckets
    thing: dict[str, Any] = {"key": "a", "size": 1, "eTag": f"e{sequence}", "sequencer": f"{sequence:016X}"}
    record = {
        "eventVersion": "2.3", "eventSource": "aws:s3", "eventTime": "2026-03-01T12:00:00Z", "eventName": name,
        "s3": {"bucket": {"name": bucket}, "object": thing},
    }  # fmt: skip
    return json.dumps({"Records": [record]}).encode()


@pytest.mark.parametrize("name", ["ObjectCreated:Put", "ObjectRemoved:Delete"])
def test_an_event_waits_while_its_bucket_does_not_answer(settings: Settings, bucket: Bucket, tmp_path: Path, name: str):
    with (
        Log.open(tmp_path / "log", settings.model.log) as log,
        SqlDocumentStore(f"sqlite:///{tmp_path / 'documents.db'}") as store,
    ):
        ensure_topic(log, TOPIC)
        follower = ObjectFollower(log, settings, lambda: store)
        bucket.error = NotAllowedError("this process may not ask")  # which is an answer: the event alone counts
        log.append(TOPIC, Batch.of_messages([event(settings, "ObjectCreated:Put", 1)]))
        assert follower.catch_up() == 1
        before = [document.revision for document in store.list_metadata()]

        bucket.error, bucket.asked = UnavailableError("no answer in time"), 0
        log.append(TOPIC, Batch.of_messages([event(settings, name, 2)]))
        with pytest.raises(UnavailableError):
            follower.catch_up()
        assert bucket.asked == 1
        assert [document.revision for document in store.list_metadata()] == before
        assert log.info(TOPIC).subscriptions.get(SUBSCRIPTION) == 1

        bucket.error = None  # it says that the object is gone
        follower.catch_up()
        assert log.info(TOPIC).subscriptions.get(SUBSCRIPTION) == 2
