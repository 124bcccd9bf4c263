"""Makes a golden fixture of the on-disk formats as this version of Frazil writes them: `python -m tests.golden_make 2`.

Make a fixture once for each version of the formats, and never change it: every later version has to pass
`tests/component/test_formats.py` with it. The expected messages are those that are published here; the tests state the
expected rows of the content tables. It takes about two minutes, because Spark is started several times.

The upkeep history records the name of the host: `unshare --uts sh -c 'hostname localhost; python -m …'` hides yours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from frazil.content.annotations import messages
from frazil.content.intake.messages import headers_of, store
from frazil.content.scan.listing import Shard, Skipped
from frazil.content.scan.state import ScanCounts, ScanState, ShardProgress, state_file
from frazil.content.topic import ensure_events_topic
from frazil.log.batch import Batch
from frazil.settings import Settings, load_settings
from tests import golden
from tests.log_kit import crash
from tests.machine import machine_environment, machine_flags
from tests.sink_kit import SinkKit, sink_kit_of

ORDERS, NOTES = "orders", "notes"
EVENTS = "content_events"
BUCKET = "golden-bucket"
#: What a scan of another bucket had reached when it broke off.
SCAN = ScanState(
    ("s3://golden-scan", "", "False", EVENTS, "log-id", "False"),
    "2026-11-18T10:00:00.000000Z",
    (ShardProgress(Shard("b/", deep=True), "b/17.jpg"), ShardProgress(Shard("c/", deep=True))),
    ScanCounts(1200, 34_000, 2, 12, 1, (Skipped("odd\udcff", "its name is no text"),), 1100, 100),
)

_FLAGS = {"log.max_file_size": "4096", "log.min_free": "0"}


def settings_of(home: Path) -> Settings:
    return load_settings(flags={**machine_flags(), **_FLAGS, "home": str(home)}, environ={})


def main(version: str) -> None:
    with tempfile.TemporaryDirectory(prefix="frazil-golden-") as folder:
        home = Path(folder) / "home"
        settings = settings_of(home)
        with sink_kit_of(settings) as kit:
            said = {ORDERS: orders(kit), NOTES: notes(kit)}
            kit.client.sync(ensure_events_topic(kit.client, settings).name)
            publish_content(kit, first_events())
        frazil(home, "pipeline", "--drain")
        with sink_kit_of(settings) as kit:
            publish_content(kit, later_events())
        frazil(home, "pipeline", "--drain")
        frazil(home, "table", "compact", "topics.orders", "--min-files", "2")
        frazil(home, "table", "expire", "topics.orders", "--keep", "1")
        frazil(home, "upkeep", "run", "content.journal")
        leave_scan(settings)
        dead, position, retained = last_words(settings, said)
        expected = {
            "position": position,
            "log_start": retained,
            "dead": dead,
            "messages": {t: [[o, p.decode()] for o, p in sorted(m.items())] for t, m in said.items()},
        }
        golden.pack(home, version, expected)


def frazil(home: Path, *args: str) -> None:
    own = {"FRAZIL_HOME": str(home), "FRAZIL_LOG__MAX_FILE_SIZE": "4096", "FRAZIL_LOG__MIN_FREE": "0"}
    kept = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    command = [Path(sys.executable).with_name("frazil"), *args]
    subprocess.run(command, env={**kept, **machine_environment(), **own}, cwd=home, check=True)


def orders(kit: SinkKit) -> dict[int, bytes]:
    """Every kind of frame, several segments, commits between them, a dead letter, and a log whose beginning is gone."""
    kit.create(ORDERS)
    for n in range(3):
        kit.publish(ORDERS, b'{"n": %d}' % n)
    kit.append(ORDERS, Batch.of_messages([b"a", b"", b"ccc"], [7, None, -7]))
    kit.acknowledged[ORDERS].update({3: b"a", 4: b"", 5: b"ccc"})
    place = pa.struct([("city", pa.string()), ("zip", pa.int32())])
    columns = {
        "amount": pa.array([1.5, None]), "count": pa.array([1, 2], pa.int64()),
        "tags": pa.array([["x", "y"], None], pa.list_(pa.string())),
        "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "price": pa.array([None, 12], pa.int32()).cast(pa.decimal128(12, 2)),
        "place": pa.array([{"city": "Oulu", "zip": 90100}, None], place),
        "headers": pa.array([[("source", "shop")], None], pa.map_(pa.string(), pa.string())),
    }  # fmt: skip
    kit.publish(ORDERS, b"with columns", b"with few", **columns)
    kit.engine(ORDERS).catch_up()
    producer = kit.log.register(ORDERS, "billing")
    for sequence in range(3):
        batch = Batch.of_messages([b"billed %d" % sequence])
        ack = kit.append(ORDERS, batch.with_sequence(producer.producer_id, producer.producer_epoch, sequence))
        kit.acknowledged[ORDERS][ack.offset] = b"billed %d" % sequence
    kit.log.commit(ORDERS, "dashboard", 5)
    kit.engine(ORDERS).catch_up()
    kit.change_type(ORDERS, "count")
    kit.publish(ORDERS, b"does not fit", b"fits", count=pa.array([3, None], pa.int64()))
    kit.engine(ORDERS).catch_up()
    for n in range(20):
        kit.publish(ORDERS, b"%d " % n + b"=" * 1000)
        if n % 5 == 4:
            kit.engine(ORDERS).catch_up()
    return kit.acknowledged[ORDERS]


def notes(kit: SinkKit) -> dict[int, bytes]:
    """A topic without a table."""
    kit.create(NOTES, "log")
    for n in range(8):
        kit.publish(NOTES, b"note %d " % n + b"-" * 900)
    return kit.acknowledged[NOTES]


def record(name: str, key: str, sequencer: int, version: str = "", **thing: Any) -> dict[str, Any]:
    found = {"key": key, "sequencer": f"{sequencer:018X}", **thing, **({"versionId": version} if version else {})}
    return {
        "eventVersion": "2.1", "eventSource": "aws:s3", "eventTime": f"2026-11-01T00:00:{sequencer:02d}.000Z",
        "eventName": name, "s3": {"bucket": {"name": BUCKET}, "object": found},
    }  # fmt: skip


def first_events() -> list[bytes]:
    return [
        json.dumps({"Records": records}).encode()
        for records in (
            [record("ObjectCreated:Put", "a.jpg", 1, eTag="a1", size=10)],
            [record("ObjectCreated:Put", "b.jpg", 2, "v1", eTag="b1", size=20)],
            [record("ObjectCreated:Put", "gone.jpg", 3, eTag="g1", size=30)],
        )
    ] + [b"this is no event"]


def later_events() -> list[bytes]:
    at = datetime(2026, 11, 1, 1, tzinfo=UTC)
    events = [
        record("ObjectCreated:Put", "a.jpg", 4, eTag="a2", size=11),
        record("ObjectCreated:Put", "b.jpg", 5, "v2", eTag="b2", size=21),
        record("ObjectRemoved:Delete", "gone.jpg", 6),
    ]
    camera = {"name": "camera", "type": "STRING", "jpath": "$.exif.Model"}
    return [
        json.dumps({"Records": events}).encode(),
        messages.fields([camera], cast="lenient", include_raw_metadata=True),
        messages.edit(BUCKET, [{"key": "b.jpg", "version_id": "v2", "add": ["holiday"], "rating": 5}], at),
    ]


def late_event() -> bytes:
    return json.dumps({"Records": [record("ObjectCreated:Put", "late.jpg", 7, eTag="l1", size=40)]}).encode()


def publish_content(kit: SinkKit, bodies: list[bytes]) -> None:
    for body in bodies:
        if body.startswith(b'{"frazil":'):
            store(kit.client, EVENTS, [body], headers_of("test"), internal=True)
        else:
            kit.publish(EVENTS, body)


def leave_scan(settings: Settings) -> None:
    with state_file(settings, SCAN.what[0], "") as file:
        file.write(SCAN)


def last_words(settings: Settings, said: dict[str, dict[int, bytes]]) -> tuple[list[int], int, int]:
    """Messages that no table has, a crash that leaves segments open, and half a frame behind the last one."""
    with sink_kit_of(settings) as kit:
        engine = kit.engine(ORDERS)
        engine.catch_up()
        position, dead = engine.offset, [r["offset"] for r in kit.dead(ORDERS)]
        kit.log.retain(ORDERS, size=3 * 4096)
        start = kit.log.info(ORDERS).start
        for topic in (ORDERS, NOTES):
            kit.publish(topic, b"not in any table yet")
            said[topic].update(kit.acknowledged[topic])
        kit.publish(EVENTS, late_event())
        opened = kit.log._open[NOTES].files.active
        crash(kit.log)
        with opened.path.open("r+b") as file:
            whole = file.read()[: opened.size]
            file.seek(opened.size)
            file.write(whole[:100])  # its header, and the beginning of its body
    (settings.model.home / "log" / "LOCK").write_text("")
    assert position is not None and 0 < start < position
    return dead, position, start


if __name__ == "__main__":
    main(sys.argv[1])
