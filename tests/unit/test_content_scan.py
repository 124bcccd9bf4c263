"""Looking at folders and buckets without Spark: what is listed, told, remembered and settled."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from frazil.content.buckets import bucket_of
from frazil.content.events.observation import read_observation
from frazil.content.s3_errors import from_boto
from frazil.content.scan.bucket import Bucket, open_bucket
from frazil.content.scan.debounce import GROWING_S, Debouncer
from frazil.content.scan.folder import Folder, check_prefix, open_folder
from frazil.content.scan.known_objects import KnownObjects
from frazil.content.scan.listing import Object, Page, Shard, Skipped, split_shards
from frazil.content.scan.publish import ObservationPublisher
from frazil.content.scan.scanner import run_scan
from frazil.content.scan.state import ScanCounts, ScanState, ScanStateFile, ShardProgress, state_file
from frazil.errors import (
    CredentialsError,
    FrazilError,
    LockedError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from frazil.log.remote.broker import Broker
from frazil.log.remote.producer import Producer
from frazil.log.trust import add_mark
from frazil.observe.faultpoints import handled
from frazil.settings import Settings, load_settings
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import s3_client
from frazil.storage.s3_client import client_of
from frazil.topics import open_log

NOTHING = KnownObjects(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
ODD = ["a b", "a+b", "a%2Bb", "new\nline", "ctl\x01x", "ünï/çode", "a/b", "a-b/c", "a.b", "..x", "e\u2028x", "x" * 255]


def folder_of(path: Path, *keys: str) -> Folder:
    for key in keys:
        file = path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(key)
    return Folder(bucket_of(str(path)), str(path))


def keys_of(folder: Folder, shard: Shard | None = None, position: str | None = None) -> list[str]:
    return [seen["key"] for page in folder.pages(shard or Shard(""), position) for seen in page.objects]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(flags={"home": str(tmp_path / "home"), "log.min_free": "0"}, environ={})


# -- a folder ----------------------------------------------------------------------------------------------------------


def test_keys_come_in_the_order_of_their_bytes_whatever_they_are_made_of(tmp_path: Path):
    folder = folder_of(tmp_path, *ODD)
    assert keys_of(folder) == sorted(ODD, key=str.encode)


def test_an_object_has_size_time_type_and_an_etag_that_a_copy_keeps(tmp_path: Path):
    folder = folder_of(tmp_path / "one", "birds/heron.jpg")
    moment = 1_700_000_000_123_456_789
    os.utime(tmp_path / "one/birds/heron.jpg", ns=(moment, moment))
    (seen,) = next(folder.pages(Shard(""))).objects
    assert seen["size"] == len("birds/heron.jpg") and seen["content_type"] == "image/jpeg"
    assert seen["last_modified"] == "2023-11-14T22:13:20.123456Z"
    copy = folder_of(tmp_path / "two", "birds/heron.jpg")
    assert next(copy.pages(Shard(""))).objects[0]["etag"] != seen["etag"]
    os.utime(tmp_path / "two/birds/heron.jpg", ns=(moment, moment))
    assert next(copy.pages(Shard(""))).objects == [seen]


def test_a_file_from_before_1970_has_its_time(tmp_path: Path):
    folder = folder_of(tmp_path, "old")
    os.utime(tmp_path / "old", ns=(-1_500_000_000, -1_500_000_000))
    (seen,) = next(folder.pages(Shard(""))).objects
    assert seen["last_modified"] == "1969-12-31T23:59:58.500000Z"
    assert Debouncer({}).update([seen], [], now=0.0)[0].kind == "new"


def test_links_are_not_followed_and_what_is_no_file_is_no_object(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    folder = folder_of(tmp_path / "in", "a")
    (tmp_path / "in/out").symlink_to(outside)
    (tmp_path / "in/file").symlink_to(outside / "secret")
    (tmp_path / "in/self").symlink_to(tmp_path / "in")
    os.mkfifo(tmp_path / "in/fifo")
    listener = socket.socket(socket.AF_UNIX)
    previous = Path.cwd()
    os.chdir(tmp_path / "in")  # the path of a socket is short
    try:
        listener.bind("sock")
    finally:
        os.chdir(previous)
        listener.close()
    (page,) = folder.pages(Shard(""))
    assert [seen["key"] for seen in page.objects] == ["a"]
    assert {skipped.key for skipped in page.skipped} == {"file", "out", "self"}
    assert keys_of(folder, Shard("out/")) == []
    asked = [seen for _, answer in folder.look_up([("out/secret", ""), ("file", ""), ("a", "")]) for seen in answer]
    assert [seen["exists"] for seen in asked] == [False, False, True]


def test_a_name_that_is_no_text_is_counted_and_does_not_stop_the_walk(tmp_path: Path):
    folder = folder_of(tmp_path, "a", "z")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")).write_text("x")
    (page,) = folder.pages(Shard(""))
    assert [seen["key"] for seen in page.objects] == ["a", "z"]
    assert page.skipped == (Skipped("bad\ufffd", "the name is not UTF-8", unknown=False),)


def test_a_folder_that_cannot_be_read_is_skipped_and_hides_what_is_in_it(tmp_path: Path, monkeypatch):
    folder = folder_of(tmp_path, "a/1", "b/2", "c/3")
    real = os.scandir

    def refusing(path: str) -> Any:
        if path.endswith("/b/"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr("frazil.content.scan.folder.os.scandir", refusing)
    (page,) = folder.pages(Shard(""))
    assert [seen["key"] for seen in page.objects] == ["a/1", "c/3"]
    (skipped,) = page.skipped
    assert skipped.hides("b/2") and skipped.hides("b/x/y") and not skipped.hides("bb") and not skipped.hides("a/1")


@pytest.mark.parametrize("seed", range(5))
def test_pages_that_go_on_anywhere_give_every_key_once(tmp_path: Path, seed: int, monkeypatch):
    monkeypatch.setattr("frazil.content.scan.folder.PAGE", 3)
    chosen = random.Random(seed)
    parts = ["a", "a-b", "a b", "b", "ü", "z"]
    keys = {"/".join(chosen.choices(parts, k=chosen.randint(1, 3))) + ".f" for _ in range(40)}
    folder = folder_of(tmp_path, *keys)
    (tmp_path / "m-link").symlink_to(tmp_path)
    found: list[str] = []
    position: str | None = ""
    while position is not None:
        page = next(folder.pages(Shard(""), position))
        found += [seen["key"] for seen in page.objects]
        position = page.next
    assert found == sorted(keys)


def test_shards_are_disjoint_and_complete(tmp_path: Path):
    keys = [f"{a}/{b}/{c}.txt" for a in "abc" for b in "xy" for c in "12"] + ["top.txt", "a/direct.txt"]
    folder = folder_of(tmp_path, *keys)
    assert split_shards(folder, "", 1) == [Shard("")]
    for wanted in (2, 5, 50):
        shards = split_shards(folder, "", wanted)
        assert sorted(key for shard in shards for key in keys_of(folder, shard)) == sorted(keys)
    assert len(split_shards(folder, "", 5)) == 10  # the top, then each of three with its own top and two folders
    assert keys_of(folder, Shard("a/x")) == ["a/x/1.txt", "a/x/2.txt"]
    assert sorted(key for shard in split_shards(folder, "a", 9) for key in keys_of(folder, shard)) == [
        key for key in sorted(keys) if key.startswith("a")
    ]


def test_a_level_that_is_too_wide_is_listed_as_a_whole(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("frazil.content.scan.listing._WIDEST", 2)
    folder = folder_of(tmp_path, "a/1", "b/1", "c/1")
    assert split_shards(folder, "", 8) == [Shard("")]


def test_frazils_own_folders_are_left_out_and_cannot_be_scanned(tmp_path: Path, settings: Settings):
    (tmp_path / "home/log").mkdir(parents=True)
    folder_of(tmp_path, "home/log/x", "home/catalog.db", "photo.jpg")
    folder = open_folder(bucket_of(str(tmp_path)), settings)
    assert keys_of(folder) == ["photo.jpg"] and folder.own == (str(tmp_path / "home"),)
    with pytest.raises(UsageError, match="own folder"):
        open_folder(bucket_of(str(tmp_path / "home/log")), settings)
    folder_of(tmp_path, "home/photos/a.jpg")
    assert keys_of(open_folder(bucket_of(str(tmp_path / "home/photos")), settings)) == ["a.jpg"]


def test_thumbnails_in_a_folder_of_photos_are_no_photos(tmp_path: Path):
    photos = tmp_path / "photos"
    folder_of(photos, "a.jpg", "small/ab/x.webp")
    for thumbnails in (str(photos / "small"), (photos / "small").as_uri()):
        settings = load_settings(
            flags={"home": str(tmp_path / "home"), "content.extract.thumbnails": thumbnails}, environ={}
        )
        assert keys_of(open_folder(bucket_of(str(photos)), settings)) == ["a.jpg"]
        with pytest.raises(UsageError, match="own folder"):
            open_folder(bucket_of(str(photos / "small")), settings)


def test_a_folder_that_is_not_there_or_a_file_is_told_apart(tmp_path: Path, settings: Settings):
    with pytest.raises(NotFoundError, match="no folder"):
        open_folder(bucket_of(str(tmp_path / "nope")), settings)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        open_folder(bucket_of(str(tmp_path / "file")), settings)
    gone = Folder("file:///x", str(tmp_path / "nope"))
    with pytest.raises(NotFoundError):
        list(gone.pages(Shard("")))


@pytest.mark.parametrize("prefix", ["../x", "/etc/", "a/../../b", "a//b"])
def test_a_prefix_cannot_lead_out_of_the_folder(prefix: str):
    with pytest.raises(UsageError):
        check_prefix(prefix)


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", "..x", "a/."])
def test_other_prefixes_are_fine(prefix: str):
    assert check_prefix(prefix) == prefix


# -- a bucket ----------------------------------------------------------------------------------------------------------


def answer(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "X")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answer("NoSuchBucket", 404), NotFoundError),
        (answer("404", 404), NotFoundError),
        (answer("AccessDenied", 403), NotAllowedError),
        (answer("InvalidAccessKeyId", 403), CredentialsError),
        (answer("SlowDown", 503), UnavailableError),
        (answer("InvalidArgument", 400), UsageError),
        (EndpointConnectionError(endpoint_url="http://x"), UnavailableError),
    ],
)
def test_what_servers_say_comes_out_as_our_errors(error: Exception, kind: type[FrazilError]):
    found = from_boto(error, "b")
    assert type(found) is kind and "s3://b" in found.message and found.hint


def test_a_client_is_made_once_for_the_same_settings():
    s3 = S3Settings(endpoint="http://127.0.0.1:1", access_key="k", secret_key="s")
    assert client_of(s3, NetworkSettings()) is client_of(S3Settings(**s3.model_dump()), NetworkSettings())


def test_a_bucket_that_cannot_be_reached_says_so():
    s3 = S3Settings(endpoint="http://127.0.0.1:1", access_key="k", secret_key="s")
    network = NetworkSettings(retry_attempts=1, connect_timeout=0.5)
    with pytest.raises(UnavailableError, match="no response"):
        Bucket("b", s3, network).now()


class Denying:
    """A client that may list a bucket, and nothing else."""

    def list_objects_v2(self, **_asked: Any) -> dict[str, Any]:
        return {"ResponseMetadata": {"HTTPHeaders": {"date": "Sun, 15 Nov 2026 18:54:57 GMT"}}}

    def get_bucket_versioning(self, **_asked: Any) -> dict[str, Any]:
        raise answer("AccessDenied", 403)


def test_a_bucket_that_does_not_tell_whether_it_has_versions_has_to_be_told(settings: Settings, monkeypatch):
    monkeypatch.setattr("frazil.content.scan.bucket.client_of", lambda *_: Denying())
    with pytest.raises(NotAllowedError) as told:
        open_bucket("b", settings, None)
    assert "--versions or --no-versions" in (told.value.hint or "")
    assert open_bucket("b", settings, "all").versions == "all"
    assert open_bucket("b", settings, "latest").versions is None
    assert open_bucket("b", settings, "all").now() == datetime(2026, 11, 15, 18, 54, 57, tzinfo=UTC)


def test_times_of_listings_and_of_heads_are_read_alike():
    moment = datetime(2026, 11, 15, 18, 54, 57, tzinfo=UTC)
    for text in ("2026-11-15T18:54:57.000Z", "2026-11-15T18:54:57", "Sun, 15 Nov 2026 18:54:57 GMT"):
        assert s3_client._moment(text) == moment


# -- telling -----------------------------------------------------------------------------------------------------------


class Told:
    """A producer that remembers."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def publish(self, payload: bytes, headers: dict[str, str]) -> Any:
        from frazil.log.protocol import Ack, Level

        assert headers == add_mark({"source": "scan"})
        self.payloads.append(payload)
        return Ack("t", len(self.payloads) - 1, 1, Level.disk, 0)


def test_a_message_has_at_most_a_thousand_objects_and_no_more_bytes_than_the_log_takes():
    told = Told()
    publisher = ObservationPublisher(told, "b", "scan", 20_000)  # type: ignore[arg-type]
    objects = [{"key": "\x01" * 100 + str(n), "size": n} for n in range(2500)]
    publisher.publish(objects, datetime(2026, 11, 15, tzinfo=UTC))
    assert all(len(payload) <= 20_000 for payload in told.payloads) and publisher.end == len(told.payloads)
    read = [change for payload in told.payloads for change in read_observation(json.loads(payload)).changes]
    assert [change["key"] for change in read] == [thing["key"] for thing in objects]
    assert {change["time"] for change in read} == {datetime(2026, 11, 15, tzinfo=UTC)}


# -- a scan ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A place of pages that were made up; it remembers which were read."""

    shards: dict[str, int]
    read: list[tuple[str, int]] = field(default_factory=list)
    bucket: str = "made"
    is_local: bool = True

    def now(self) -> datetime:
        return datetime(2026, 11, 15, tzinfo=UTC)

    def children(self, prefix: str, at_most: int) -> list[str] | None:
        return [] if prefix else sorted(self.shards)

    def pages(self, shard: Shard, position: str | None = None) -> Iterator[Page]:
        if not shard.deep:
            yield Page([], self.now(), None)
            return
        for number in range(int(position or 0), self.shards[shard.prefix]):
            self.read.append((shard.prefix, number))
            objects = [{"key": f"{shard.prefix}{number}/{n}", "exists": True, "size": 2} for n in range(10)]
            following = None if number + 1 == self.shards[shard.prefix] else str(number + 1)
            yield Page(objects, self.now(), following)

    def ask(self, keys: Sequence[tuple[str, str]]) -> Iterator[tuple[datetime, list[Object]]]:
        raise NotImplementedError


@pytest.fixture
def log(settings: Settings) -> Iterator[tuple[Any, str]]:
    with open_log(settings) as opened, Broker(opened) as broker:
        yield opened, broker.address


def told_keys(log: Any, settings: Settings) -> list[str]:
    from frazil.log.messages import decode_chunk

    info = log.info(settings.model.content.topic)
    payloads = [
        payload
        for chunk in log.chunks(info.name, 0, info.end)
        for payload in decode_chunk(chunk, info.view, 0, info.end).column("payload").to_pylist()
    ]
    return [thing["key"] for payload in payloads for thing in json.loads(payload)["objects"]]


def all_keys(place: Made) -> list[str]:
    return sorted(f"{p}{number}/{n}" for p, pages in place.shards.items() for number in range(pages) for n in range(10))


def test_a_scan_tells_every_object_once_and_leaves_no_state(settings: Settings, log: tuple[Any, str]):
    place = Made({"a/": 5, "b/": 1, "c/": 12})
    rounds: list[tuple[int, int]] = []
    done = run_scan(
        settings, log[0], place, NOTHING, tasks=2, pages=2,
        progress=lambda tally, left: rounds.append((tally.pages, left)),
    )  # fmt: skip
    assert sorted(told_keys(log[0], settings)) == all_keys(place)
    assert (done.tally.objects, done.tally.bytes, done.resumed) == (180, 360, False)
    assert done.tally.end == log[0].info(settings.model.content.topic).end
    assert len(rounds) > 3 and rounds[-1][1] == 0
    assert not list((settings.model.home / "content/scans").glob("*.json"))


@pytest.mark.parametrize("step", ["content.scan.page.before", "content.scan.page.after", "content.scan.round"])
def test_a_scan_that_broke_off_goes_on_where_it_was(settings: Settings, log: tuple[Any, str], step: str):
    """A fault before the acknowledgement lists that page again; no other is read twice, and none is told twice."""
    place = Made({"a/": 5, "b/": 3, "c/": 4})
    count = 0

    def fault(reached: str) -> None:
        nonlocal count
        count += reached == step
        if count == 3 and reached == step:
            raise UnavailableError("the bucket has vanished")

    with (
        handled(fault),
        pytest.raises(UnavailableError, match=r"vanished; \d+ objects were seen, and the same") as told,
    ):
        run_scan(settings, log[0], place, NOTHING, tasks=1, pages=3)
    before = len(told_keys(log[0], settings))
    assert 0 < before < 120 and told.value.details["seen"] == before
    done = run_scan(settings, log[0], place, NOTHING, tasks=1, pages=3)
    assert done.resumed and done.tally.objects == 120 and done.listed == 120 - before
    assert sorted(told_keys(log[0], settings)) == all_keys(place)
    twice = len(place.read) - len(set(place.read))
    assert twice == (step == "content.scan.page.before")


def test_restart_begins_anew_and_another_log_does_so_by_itself(settings: Settings, log: tuple[Any, str]):
    place = Made({"a/": 4})

    def fault(reached: str) -> None:
        if reached == "content.scan.round":
            raise UnavailableError("stop")

    with handled(fault), pytest.raises(UnavailableError):
        run_scan(settings, log[0], place, NOTHING, pages=1)
    assert not run_scan(settings, log[0], place, NOTHING, restart=True).resumed
    with handled(fault), pytest.raises(UnavailableError):
        run_scan(settings, log[0], place, NOTHING, pages=1)
    log[0].delete_topic(settings.model.content.topic)
    assert not run_scan(settings, log[0], place, NOTHING).resumed
    assert sorted(told_keys(log[0], settings)) == all_keys(place)


def test_a_state_survives_its_file_and_a_broken_file_is_none(tmp_path: Path):
    what = ("b", "ü", "None", "t", "l")
    part = ShardProgress(Shard("bad\udcff/", deep=False), "k\0v")
    tally = ScanCounts(1, 2, 3, 4, 1, (Skipped("x", "why", unknown=False),))
    state = ScanState(what, "2026-11-15T00:00:00.000000Z", (part,), tally)
    file = ScanStateFile(tmp_path / "s.json")
    assert file.read(what) is None
    file.write(state)
    assert file.read(what) == state
    assert file.read(("other", *what[1:])) is None
    (tmp_path / "s.json").write_text((tmp_path / "s.json").read_text()[:-9])
    assert file.read(what) is None


def test_two_scans_of_the_same_do_not_run_at_once(settings: Settings):
    with (
        state_file(settings, "b", ""),
        state_file(settings, "b", "x/"),
        pytest.raises(LockedError, match="another scan"),
        state_file(settings, "b", ""),
    ):
        pass
    with state_file(settings, "b", ""):
        pass


# -- watching ----------------------------------------------------------------------------------------------------------


def file(key: str, written: float, size: int = 1) -> Object:
    moment = datetime.fromtimestamp(0, UTC) + timedelta(seconds=written)
    return {"key": key, "exists": True, "etag": f"{written}-{size}", "size": size, "last_modified": moment.isoformat()}


def kinds(changes: Sequence[Any]) -> list[tuple[str, str]]:
    return [(change.kind, change.found["key"]) for change in changes]


def test_old_files_come_at_once_and_only_once():
    settling = Debouncer({"known": file("known", 10)["etag"], "changed": "old"})
    files = [file("changed", 20), file("known", 10), file("new", 30)]
    assert kinds(settling.update(files, [], 100)) == [("changed", "changed"), ("new", "new")]
    assert settling.update(files, [], 101) == []


def test_a_file_that_is_being_written_comes_once_when_it_is_done():
    settling = Debouncer({})
    assert settling.update([file("a", 100.0, 1)], [], 100.1) == []
    assert settling.update([file("a", 100.5, 2)], [], 100.6) == []
    assert kinds(settling.update([file("a", 100.5, 2)], [], 101.0)) == [("new", "a")]  # two looks saw it alike
    assert settling.update([file("a", 100.5, 2)], [], 101.5) == []
    assert settling.update([file("a", 102.0, 3)], [], 102.1) == []
    assert kinds(settling.update([file("a", 102.0, 3)], [], 103.5)) == [("changed", "a")]


def test_a_file_that_grows_without_end_comes_every_half_minute():
    settling = Debouncer({})
    told = [now for now in range(100, 200) if settling.update([file("a", now, now)], [], now + 0.1)]
    gaps = [later - earlier for earlier, later in pairwise(told)]
    assert told[0] == 100 + GROWING_S and gaps == [GROWING_S + 1] * (len(told) - 1) and len(told) > 2


def test_what_vanishes_is_gone_at_once_but_not_what_cannot_be_looked_at():
    settling = Debouncer({"a": "x", "dir/b": "x", "dir2/c": "x"})
    hidden = [Skipped("dir/", "Permission denied"), Skipped("a", "a link", unknown=False)]
    assert kinds(settling.update([], hidden, 100)) == [("gone", "a"), ("gone", "dir2/c")]
    assert kinds(settling.update([], [], 101)) == [("gone", "dir/b")]
    assert settling.update([], [], 102) == []


def test_a_file_that_came_and_went_before_it_was_done_is_never_told():
    settling = Debouncer({})
    assert settling.update([file("a", 100.0)], [], 100.1) == []
    assert settling.update([], [], 100.2) == []
    assert settling.update([file("a", 100.3)], [], 100.4) == []


def test_a_watched_folder_tells_the_log(tmp_path: Path, settings: Settings, log: tuple[Any, str]):
    import threading

    from frazil.content.scan.watch import watch
    from frazil.content.topic import ensure_events_topic

    folder = folder_of(tmp_path / "in", "old")
    os.utime(tmp_path / "in/old", (1, 1))
    stop, seen = threading.Event(), []

    def step() -> None:
        done = {key for _, key in seen}
        if done == {"old"} and not (tmp_path / "in/new").exists():
            folder_of(tmp_path / "in", "new")
        elif done == {"old", "new"}:
            (tmp_path / "in/old").unlink(missing_ok=True)
            stop.set()

    with Producer(log[0], ensure_events_topic(log[0], settings).name, internal=True) as producer:
        publisher = ObservationPublisher(producer, folder.bucket, "watch", 8_000_000)
        watch(
            folder,
            publisher,
            Debouncer({}),
            every_s=0.01,
            stop=stop,
            told=lambda c, _: seen.extend(kinds(c)),
            idle=step,
        )
    assert seen == [("new", "old"), ("new", "new"), ("gone", "old")]
    assert told_keys(log[0], settings) == ["old", "new", "old"]


def test_a_watched_folder_that_vanishes_is_an_error_and_not_the_end_of_its_files(tmp_path: Path):
    from frazil.content.scan.watch import list_changes

    settling = Debouncer({"a": "x"})
    with pytest.raises(NotFoundError):
        list_changes(Folder("file:///x", str(tmp_path / "nope")), settling)
    assert kinds(settling.update([], [], 1)) == [("gone", "a")]


def test_the_time_of_a_look_is_the_servers_second_and_where_in_it_we_asked():
    from frazil.content.scan.bucket import _time_of

    began = datetime(2026, 1, 1, 12, 0, 5, 250_000, tzinfo=UTC)

    def told(text: str | None) -> datetime:
        return _time_of({"ResponseMetadata": {"HTTPHeaders": {"date": text}}}, began)

    assert told("Thu, 01 Jan 2026 12:00:05 GMT") == began
    assert told("Thu, 01 Jan 2026 12:00:06 GMT") == datetime(2026, 1, 1, 12, 0, 6, tzinfo=UTC)
    assert told("Thu, 01 Jan 2026 11:00:00 GMT") == datetime(2026, 1, 1, 11, tzinfo=UTC), "its clock counts, not ours"
    assert told(None) == began
