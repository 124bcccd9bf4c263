"""Chapter 4: a folder, a burst of disordered and doubled messages about it, and a change behind the table's back."""

from __future__ import annotations

import random
from pathlib import Path

from frazil.content.buckets import bucket_of
from frazil.content.events.observation import observation
from frazil.content.intake import messages
from frazil.content.names import objects_name
from frazil.content.scan.engine import RunningEngine
from frazil.content.scan.folder import Folder, open_folder
from frazil.content.scan.session import ScanSession
from frazil.content.topic import ensure_events_topic
from frazil.demo.session import SharedSession
from frazil.demo.stage import Stage
from frazil.errors import IntegrityError
from frazil.log.protocol import LogAccess
from frazil.settings import Settings
from frazil.tables.store import LazyStore
from frazil.topics import connect, flight_address
from frazil.topics.connection import silent

_FILES = 200
_CHANGES = 2_000
_TIMES = 3

Seen = dict[str, int]
"""Key and size."""


def chapter(stage: Stage, settings: Settings, session: SharedSession) -> None:
    stage.chapter("Chapter 4: the files of a folder as a table that stays correct")
    folder = settings.model.home.parent / "pictures"
    tuned, spark = session.settings, session.get()
    with stage.step(f"{_FILES} files in {folder.name}/"):
        for number in range(_FILES):
            _write(folder / f"album-{number % 10}" / f"{number:04d}.jpg", number)
    with (
        connect(tuned, note=silent) as access,
        flight_address(access) as address,
        LazyStore(tuned) as store,
    ):
        there = open_folder(bucket_of(str(folder)), tuned)
        work = ScanSession(tuned, access, RunningEngine(spark, address))
        with stage.step("frazil content scan: list the folder on Spark, and wait until the rows are visible") as record:
            scanned = work.scan(there)
            work.wait_until_visible(scanned.tally.end)
            record["objects"] = scanned.tally.objects
        _compare(stage, store, tuned, there, "after the scan")
        with stage.step(f"{_CHANGES:,} files written, overwritten and deleted; publish each change, as a watch does"):
            events = _change(folder, there)
        sent = events * _TIMES
        random.Random(4).shuffle(sent)  # noqa: S311 - guards nothing
        with stage.step(f"publish each message {_TIMES} times, in random order: {len(sent):,}") as record:
            record["messages"] = len(sent)
            work.wait_until_visible(_send(access, tuned, sent))
        _compare(stage, store, tuned, there, "after the messages")
        with stage.step("delete 20 files, write 5 and overwrite 3 without publishing the changes"):
            _change_silently(folder)
        with stage.step("frazil content reconcile: find the differences"):
            plan, _ = work.plan(there)
        stage.table(["matching", *plan.counts], [[plan.matching, *plan.counts.values()]])
        with stage.step("frazil content reconcile --apply"):
            work.repair(there, plan)
        _compare(stage, store, tuned, there, "after reconciling")
        if work.plan(there)[0].faults:
            raise IntegrityError("a second reconcile finds differences", hint="please report it")
    stage.say("A second reconcile finds nothing. Events of S3, MinIO or Ceph arrive in the same way, over HTTP or SQS.")


def _write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def _change(folder: Path, there: Folder) -> list[bytes]:
    """Changes files at random, and returns a message for each change as `frazil content watch` publishes it."""
    chance, events = random.Random(1), []  # noqa: S311 - guards nothing
    for _ in range(_CHANGES):
        path = folder / f"album-{chance.randrange(10)}" / f"{chance.randrange(2 * _FILES):04d}.jpg"
        if chance.random() < 0.3 and path.exists():
            path.unlink()
        else:
            _write(path, chance.randrange(5_000))
        events.append(_observe(there, path.relative_to(folder).as_posix()))
    return events


def _observe(there: Folder, key: str) -> bytes:
    ((observed_at, objects),) = there.look_up([(key, "")])
    return observation(there.bucket, objects, observed_at, "watch")


def _send(access: LogAccess, settings: Settings, events: list[bytes]) -> int:
    """Publishes, and returns the offset after the last one."""
    topic = ensure_events_topic(access, settings).name
    end = 0
    for start in range(0, len(events), 1000):
        part = events[start : start + 1000]
        ack = messages.store(access, topic, part, messages.headers_of("watch"), internal=True)
        end = ack.offset + ack.count
    return end


def _change_silently(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*.jpg"))
    for path in files[:20]:
        path.unlink()
    for number in range(5):
        _write(folder / "new" / f"{number}.jpg", number)
    for path in files[30:33]:
        _write(path, 9_999)


def _compare(stage: Stage, store: LazyStore, settings: Settings, there: Folder, when: str) -> None:
    root = Path(there.root)
    in_folder: Seen = {
        path.relative_to(root).as_posix(): path.stat().st_size for path in root.rglob("*") if path.is_file()
    }
    scan = store.store().load(objects_name(settings)).scan(row_filter="is_deleted = false")
    rows = scan.to_arrow().select(["bucket", "key", "size"]).to_pylist()
    in_table: Seen = {row["key"]: row["size"] for row in rows if row["bucket"] == there.bucket}
    if in_folder != in_table:
        differing = set(in_folder.items()) ^ set(in_table.items())
        raise IntegrityError(
            f"{when}, table and folder differ in {len({key for key, _ in differing})} files", hint="please report it"
        )
    stage.table(["", "in the folder", "in the table", "different"], [[when, len(in_folder), len(in_table), 0]])
