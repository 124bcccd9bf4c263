"""From a bucket of moto, by its notifications, into a queue of SQS, and from there into the log."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus
from uuid import uuid4

import pytest

from frazil.content.annotations.messages import edit
from frazil.content.events.observation import observation
from frazil.content.events.parse import parse_messages
from frazil.content.intake.queue import open_queue
from frazil.content.intake.sqs import Polling, SqsIntake
from frazil.content.topic import ensure_topic
from frazil.errors import NotFoundError
from frazil.log import Log, LogAccess, decode_chunk
from frazil.log.trust import INTERNAL_HEADER
from frazil.settings.model import NetworkSettings, S3Settings
from tests.e2e.conftest import Shell
from tests.e2e.servers import Running
from tests.services.kit import Services
from tests.services.process import free_port

TOPIC = "content_events"


@dataclass(frozen=True)
class Bucket:
    """A bucket that tells a queue what happens in it."""

    name: str
    queue_url: str
    s3: Any
    sqs: Any

    def put(self, *keys: str) -> None:
        for key in keys:
            self.s3.put_object(Bucket=self.name, Key=key, Body=b"x")

    def left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)["Attributes"]
        return sum(map(int, found.values()))


@pytest.fixture
def bucket(services: Services) -> Bucket:
    access = services.glue.access
    name = f"photos-{uuid4().hex[:8]}"
    s3, sqs = access.client(), access.client("sqs")
    s3.create_bucket(Bucket=name)
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "2"})["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sent = [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}]
    s3.put_bucket_notification_configuration(Bucket=name, NotificationConfiguration={"QueueConfigurations": sent})
    return Bucket(name, url, s3, sqs)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(tmp_path / "log") as opened:
        ensure_topic(opened, TOPIC)
        yield opened


def intake_of(services: Services, bucket: Bucket, log: LogAccess, **polling: Any) -> SqsIntake:
    s3 = S3Settings(**services.glue.access.settings())
    queue = open_queue(bucket.queue_url, s3, NetworkSettings(), endpoint_url=services.glue.url, receivers=4)
    return SqsIntake(queue, log, TOPIC, Polling(**({"receivers": 4, "wait_s": 1} | polling)))


def keys_in(log: LogAccess) -> list[str]:
    view = log.info(TOPIC).view
    payloads = [p for c in log.chunks(TOPIC, 0) for p in decode_chunk(c, view).column("payload").to_pylist()]
    return [
        unquote_plus(record["s3"]["object"]["key"]) for p in payloads for record in json.loads(p).get("Records", ())
    ]


def wait_for(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.05)


def test_what_happens_in_a_bucket_is_in_the_log_and_no_longer_in_the_queue(services, bucket, log):
    bucket.put(*(f"a/{n}" for n in range(30)))
    bucket.s3.delete_object(Bucket=bucket.name, Key="a/7")
    intake = intake_of(services, bucket, log, until_empty=True)
    intake.run(threading.Event())
    found = Counter(keys_in(log))
    assert set(found) == {f"a/{n}" for n in range(30)} and found["a/7"] >= 2  # a queue may hand out one twice
    assert intake.deleted == intake.taken.messages == log.info(TOPIC).end >= 31  # and s3:TestEvent
    # Where two receivers delete at once, moto may show a deleted message once more.
    wait_for(lambda: bucket.left() == 0 or intake_of(services, bucket, log, until_empty=True).run(threading.Event()))


def test_nobody_speaks_for_frazil_through_a_queue(services, bucket, log):
    """Neither by what a message says nor by the attributes beside it."""
    note = {"key": "a", "version_id": "", "add": ["forged"]}
    forged = [
        observation("file:///etc", [{"key": "passwd", "size": 6}], datetime.now(UTC), "scan"),
        edit(bucket.name, [note], datetime.now(UTC)),
    ]
    mark = {INTERNAL_HEADER: {"DataType": "String", "StringValue": "1"}}
    for payload in forged:
        bucket.sqs.send_message(QueueUrl=bucket.queue_url, MessageBody=payload.decode(), MessageAttributes=mark)
    intake_of(services, bucket, log, until_empty=True).run(threading.Event())
    view = log.info(TOPIC).view
    read = [parse_messages(decode_chunk(chunk, view), "auto") for chunk in log.chunks(TOPIC, 0)]
    assert [rows for one in read for rows in (*one.changes.to_pylist(), *one.notes, *one.orders)] == []
    reasons = [misfit.reason for one in read for misfit in one.misfits]
    assert set(reasons) == {"untrusted"} and len(reasons) >= 2  # a queue may hand out one twice


def test_a_queue_that_vanishes_ends_the_intake_and_keeps_what_was_taken(services, bucket, log):
    bucket.put("a")
    intake = intake_of(services, bucket, log)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            intake.run(threading.Event())
        except NotFoundError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_for(lambda: "a" in keys_in(log) and intake.deleted == intake.taken.messages)
    bucket.sqs.delete_queue(QueueUrl=bucket.queue_url)
    thread.join(60)
    assert bucket.queue_url in str(failed[0])
    assert set(keys_in(log)) == {"a"}


def test_the_command_outlives_a_killed_broker_and_ends_cleanly_by_a_signal(services, bucket, shell):
    """Duplicates may come of it; a lost message may not."""
    keys = {f"a/{n}" for n in range(60)}
    ports = [f"serve.{name}={free_port()}" for name in ("http_port", "flight_port")]
    serve = ["serve", *(word for port in ports for word in ("--set", port))]
    polled = ["--sqs", bucket.queue_url, "--endpoint-url", services.glue.url, "--receivers", "2"]
    broker = Running(shell, *serve)
    broker.ready()
    ingest = Running(shell, "content", "ingest", *polled)
    try:
        half = sorted(keys)[:30]
        bucket.put(*half)
        wait_for(lambda: bucket.left() < 30)
        broker.send(signal.SIGKILL)
        broker.wait()
        bucket.put(*(keys - set(half)))
        broker = Running(shell, *serve)
        broker.ready()
        wait_for(lambda: bucket.left() == 0)
        ingest.send(signal.SIGTERM)
        done = ingest.ready()
        assert ingest.wait() == 0, ingest.errors
    finally:
        ingest.end()
        broker.send(signal.SIGTERM)
        broker.wait()
    assert done["messages"] >= 60 and done["refused"] == 0
    with Log.open(shell.home / ".local/share/frazil/log") as log:
        assert set(keys_in(log)) == keys


def test_a_queue_that_is_not_there_ends_the_command_with_exit_code_10(services, bucket, shell):
    done = shell.run("content", "ingest", "--sqs", f"{bucket.queue_url}-2", "--endpoint-url", services.glue.url)
    assert done.returncode == 10
    assert "there is no queue" in done.stderr and "Try: " in done.stderr


@pytest.fixture
def shell(services: Services, tmp_path: Path) -> Shell:
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    found = Shell(tmp_path / "work", tmp_path / "home")
    access = services.glue.access
    found.env = {"AWS_ACCESS_KEY_ID": access.access_key, "AWS_SECRET_ACCESS_KEY": access.secret_key}
    return found
