"""What every object store promises, on a folder, on real S3 servers, and on an emulator of Azure."""

from __future__ import annotations

import hashlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from frazil.errors import (
    ConflictError,
    CredentialsError,
    IntegrityError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import ObjectStore, open_object, open_store
from tests.services.azurite import Azurite
from tests.services.kit import Services

#: Patient: a server of the kit may stand still for some seconds.
NETWORK = NetworkSettings(connect_timeout=30)
MIB = 1024 * 1024
STRANGE = [
    "with space",
    "a%20b",
    "a%2Fb",
    "100%",
    "a+b",
    "q?x=1&y=2",
    "hash#tag",
    "ünï/日本語/😀",
    "d=2024-01-01/x.parquet",
    "'quotes\"",
    "[x]{y}(z)",
    "a:b@c,d;e",
    "~tilde^caret`tick|pipe<lt>gt",
    "x/ leading and trailing /y",
    "..hidden/.dot",
    "l" * 240,
    "/".join(["folder-of-forty-characters-or-some-more"] * 20),
]


@pytest.fixture(scope="session")
def bucket(services: Services) -> str:
    return services.seaweedfs.make_bucket("storage-contract")


@pytest.fixture(
    params=[
        "local",
        "seaweedfs",
        pytest.param("azurite", marks=pytest.mark.deep),
        pytest.param("minio", marks=pytest.mark.slow),
    ]
)
def open_at(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], ObjectStore]:
    """Opens stores below a fresh root, of which nothing exists yet."""
    if request.param == "local":
        return lambda suffix: open_store(f"{tmp_path}/new{suffix}", s3=S3Settings(), network=NETWORK)
    if request.param == "azurite":
        azurite: Azurite = request.getfixturevalue("services").azurite
        for name, value in azurite.environment.items():
            monkeypatch.setenv(name, value)
        place = f"{azurite.make_container()}/{secrets.token_hex(6)}"
        return lambda suffix: open_store(place + suffix, s3=S3Settings(), network=NETWORK)
    access = getattr(request.getfixturevalue("services"), request.param).access
    with suppress(access.client().exceptions.BucketAlreadyOwnedByYou, access.client().exceptions.BucketAlreadyExists):
        access.client().create_bucket(Bucket="storage-contract")
    s3 = S3Settings.model_validate(access.settings())
    root = f"s3://storage-contract/{secrets.token_hex(6)}"
    return lambda suffix: open_store(root + suffix, s3=s3, network=NETWORK)


@pytest.fixture
def store(open_at: Callable[[str], ObjectStore]) -> ObjectStore:
    return open_at("")


def keys(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    return [info.key for info in store.list(prefix, start_after=start_after)]


def numbered(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield bytes([number % 251]) * MIB


# Reading and writing


def test_what_was_put_is_what_is_read(store: ObjectStore) -> None:
    etag = store.put("folder/object", b"content")
    assert store.get("folder/object") == b"content"
    info = store.head("folder/object")
    assert (info.key, info.size, info.etag) == ("folder/object", 7, etag)
    assert abs(info.last_modified.timestamp() - time.time()) < 60


def test_a_put_replaces_and_changes_the_etag(store: ObjectStore) -> None:
    before = store.put("key", b"one")
    after = store.put("key", b"two")
    assert store.get("key") == b"two"
    assert after != before


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.put("empty", b"")
    store.put("empty-too", iter(()))
    for key in ("empty", "empty-too"):
        assert store.get(key) == b""
        assert list(store.get_stream(key)) == []
        assert store.head(key).size == 0
        assert store.get_range(key, 0, 10) == b""


@pytest.mark.parametrize("read", [ObjectStore.head, ObjectStore.get, ObjectStore.checksum])
def test_a_missing_object_is_not_found_by_its_name(store: ObjectStore, read: Callable[..., object]) -> None:
    store.put("there", b"")
    with pytest.raises(NotFoundError, match=r"missing/key") as caught:
        getattr(store, read.__name__)("missing/key")
    assert caught.value.hint
    with pytest.raises(NotFoundError):
        store.get_range("missing/key", 0, 0)
    with pytest.raises(NotFoundError):
        next(store.get_stream("missing/key"))


def test_a_folder_is_not_an_object(store: ObjectStore) -> None:
    store.put("folder/object", b"x")
    with pytest.raises(NotFoundError):
        store.get("folder")
    store.delete("folder")
    assert keys(store) == ["folder/object"]


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, 10, b"0123456789"),
        (0, 1, b"0"),
        (9, 1, b"9"),
        (3, 4, b"3456"),
        (4, 0, b""),
        (8, 100, b"89"),
        (10, 1, b""),
        (5000, 5, b""),
    ],
)
def test_a_range_is_a_slice(store: ObjectStore, start: int, length: int, expected: bytes) -> None:
    store.put("digits", b"0123456789")
    assert store.get_range("digits", start, length) == expected


def test_a_negative_range_is_refused(store: ObjectStore) -> None:
    store.put("digits", b"0123456789")
    for start, length in [(-1, 1), (0, -1)]:
        with pytest.raises(UsageError):
            store.get_range("digits", start, length)


def test_a_stream_can_begin_in_the_middle_and_insist_on_a_version(store: ObjectStore) -> None:
    etag = store.put("digits", b"0123456789")
    assert b"".join(store.get_stream("digits", start=6, etag=etag)) == b"6789"
    assert b"".join(store.get_stream("digits", start=10)) == b""
    store.put("digits", b"changed")
    with pytest.raises(ConflictError):
        list(store.get_stream("digits", etag=etag))


def test_twenty_mebibytes_from_an_iterator_arrive_whole(store: ObjectStore) -> None:
    expected = hashlib.sha256(b"".join(numbered(20))).hexdigest()
    store.put("large", numbered(20), sha256=expected)
    assert store.head("large").size == 20 * MIB
    assert store.checksum("large") == expected
    assert store.get_range("large", 8 * MIB - 1, 2) == bytes([7, 8])
    assert max(map(len, store.get_stream("large"))) < 12 * MIB


def test_a_file_is_put_by_its_path(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"".join(numbered(9)))
    store.put("from-file", source)
    assert store.checksum("from-file") == hashlib.sha256(source.read_bytes()).hexdigest()
    with pytest.raises(NotFoundError, match="no-such-source"):
        store.put("other", tmp_path / "no-such-source")
    assert keys(store) == ["from-file"]


@pytest.mark.parametrize("size", [1, 20])
def test_content_with_another_checksum_never_becomes_visible(store: ObjectStore, size: int) -> None:
    store.put("old", b"old")
    for key in ("new", "old"):
        with pytest.raises(IntegrityError, match=key):
            store.put(key, numbered(size), sha256="0" * 64)
    assert keys(store) == ["old"]
    assert store.get("old") == b"old"


@pytest.mark.parametrize("size", [1, 20])
def test_a_source_that_breaks_leaves_nothing(store: ObjectStore, size: int) -> None:
    def breaking() -> Iterator[bytes]:
        yield from numbered(size)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        store.put("broken", breaking())
    assert keys(store) == []


# Conditions


def test_of_eight_who_create_at_once_one_wins(store: ObjectStore) -> None:
    barrier = threading.Barrier(8)

    def create(number: int) -> bool:
        barrier.wait()
        try:
            store.put_if_absent("lease", b"%d" % number)
        except ConflictError:
            return False
        return True

    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(create, range(8)))
        assert won.count(True) == 1
        assert store.get("lease") == b"%d" % won.index(True)
        store.delete("lease")


def test_creating_where_something_is_leaves_it_alone(store: ObjectStore) -> None:
    store.put("key", b"first")
    with pytest.raises(ConflictError, match="key") as caught:
        store.put_if_absent("key", b"second")
    assert caught.value.hint
    assert store.get("key") == b"first"


def test_if_match_writes_while_nothing_has_changed(store: ObjectStore) -> None:
    first = store.put_if_absent("pointer", b"1")
    second = store.put_if_match("pointer", b"2", first)
    assert store.put_if_match("pointer", b"3", second) == store.head("pointer").etag
    assert store.get("pointer") == b"3"


def test_if_match_loses_to_a_newer_write(store: ObjectStore) -> None:
    etag = store.put("pointer", b"1")
    store.put("pointer", b"2")
    with pytest.raises(ConflictError, match="pointer"):
        store.put_if_match("pointer", b"3", etag)
    assert store.get("pointer") == b"2"


def test_if_match_does_not_bring_back_what_was_deleted(store: ObjectStore) -> None:
    etag = store.put("folder/pointer", b"1")
    store.delete("folder/pointer")
    with pytest.raises(ConflictError):
        store.put_if_match("folder/pointer", b"2", etag)
    assert keys(store) == []


def test_no_increment_is_lost_between_six_writers(store: ObjectStore) -> None:
    store.put("counter", b"0")

    def increment_five_times(_: int) -> None:
        done = 0
        while done < 5:
            etag = store.head("counter").etag
            value = b"".join(store.get_stream("counter"))
            try:
                store.put_if_match("counter", b"%d" % (int(value) + 1), etag)
                done += 1
            except ConflictError:
                continue

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(increment_five_times, range(6)))
    assert store.get("counter") == b"30"


# Names


def test_strange_names_are_kept_as_they_are(store: ObjectStore) -> None:
    for key in STRANGE:
        store.put(key, key.encode())
    assert sorted(keys(store)) == sorted(STRANGE)
    for key in STRANGE:
        assert store.get(key) == key.encode()
        assert store.head(key).key == key
    store.delete(*STRANGE)
    assert keys(store) == []


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a/./b", "a\nb", "a\0b", "a\ud800b"])
def test_names_that_not_every_store_can_hold_are_refused(store: ObjectStore, key: str) -> None:
    for call in (store.get, store.head, store.delete, lambda k: store.put(k, b""), lambda k: store.copy("x", k)):
        with pytest.raises(UsageError) as caught:
            call(key)
        assert caught.value.hint


def test_keys_are_relative_to_the_root(open_at: Callable[[str], ObjectStore]) -> None:
    open_at("/a b/c").put("d/e", b"x")
    assert open_at("").get("a b/c/d/e") == b"x"
    assert keys(open_at("")) == ["a b/c/d/e"]
    assert keys(open_at("/a b")) == ["c/d/e"]
    assert keys(open_at("/a b/c"), "d") == ["d/e"]
    assert keys(open_at("/a")) == []


# Listing


@pytest.mark.timeout(900)  # thousands of syncs
def test_a_listing_of_many_pages_has_every_key_once(store: ObjectStore) -> None:
    below = [f"many/{number:05d}" for number in range(2300)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"x"), [*below, "many-more/x", "man/x", "many.x"]))
    listed = keys(store, "many")
    assert len(listed) == 2300
    assert set(listed) == set(below)
    assert sorted(keys(store, "many", "many/01999")) == below[2000:]
    store.delete(*below)
    assert sorted(keys(store)) == ["man/x", "many-more/x", "many.x"]


def test_a_listing_after_a_key_has_exactly_the_greater_ones(store: ObjectStore) -> None:
    everything = ["a-b/c", "a.x", "a/b", "a/c/d", "a/c/e", "ab", "b", "ü"]
    for key in everything:
        store.put(key, b"x")
    for after in [*everything, "a", "a/", "a/bb", "a/c", "a/c/", "zz", "A", "~~~~"]:
        assert sorted(keys(store, start_after=after)) == [key for key in everything if key > after], after
    assert sorted(keys(store, "a", "a/b")) == ["a/c/d", "a/c/e"]


def test_a_listing_in_key_order_can_be_resumed_anywhere(store: ObjectStore) -> None:
    everything = ["a-b/c", "a.x", "a/b", "a/c/d", "ab", "b"]
    for key in everything:
        store.put(key, b"x")
    if store.lists_in_key_order:
        assert keys(store) == everything
    else:
        assert sorted(keys(store)) == everything


def test_a_listing_tells_what_head_tells(store: ObjectStore) -> None:
    store.put("folder/object", b"content")
    (listed,) = store.list("folder")
    found = store.head("folder/object")
    assert (listed.key, listed.size, listed.etag) == (found.key, found.size, found.etag)
    assert abs(listed.last_modified - found.last_modified).total_seconds() < 2


def test_nothing_is_listed_where_nothing_is(store: ObjectStore) -> None:
    assert keys(store) == []
    assert keys(store, "nowhere") == []
    store.put("object", b"x")
    assert keys(store, "object") == []


def test_an_object_that_stands_for_a_folder_is_not_listed(services: Services, bucket: str, seaweed: S3Settings) -> None:
    root = secrets.token_hex(6)
    client = services.seaweedfs.access.client()
    for key in ("", "made-by-console/", "folder/", "folder/deeper/"):
        client.put_object(Bucket=bucket.removeprefix("s3://"), Key=f"{root}/{key}", Body=b"")
    store = open_store(f"{bucket}/{root}", s3=seaweed, network=NETWORK)
    store.put("folder/object", b"x")
    store.put("empty", b"")
    assert sorted(keys(store)) == ["empty", "folder/object"]
    assert keys(store, "folder") == ["folder/object"]
    assert keys(store, "made-by-console") == []


# Copy and delete


def test_a_copy_is_the_same_content_and_replaces(store: ObjectStore) -> None:
    store.put("from/ü %20+", b"content")
    store.put("to/x", b"old")
    store.copy("from/ü %20+", "to/x")
    assert store.get("to/x") == store.get("from/ü %20+") == b"content"


def test_copying_nothing_creates_nothing(store: ObjectStore) -> None:
    with pytest.raises(NotFoundError, match="missing"):
        store.copy("missing", "target")
    assert keys(store) == []


def test_deleting_twice_is_deleting(store: ObjectStore) -> None:
    store.put("a/1", b"x")
    store.put("a/2", b"x")
    store.delete("a/1", "a/never-was", "elsewhere/never-was")
    store.delete("a/1")
    store.delete()
    assert keys(store) == ["a/2"]


# Servers that are not as they should be


@pytest.fixture
def seaweed(services: Services) -> S3Settings:
    return S3Settings.model_validate(services.seaweedfs.access.settings())


CALLS: list[Callable[[ObjectStore], object]] = [
    lambda store: store.head("x"),
    lambda store: store.get("x"),
    lambda store: store.put("x", b"x"),
    lambda store: store.put("x", numbered(9)),
    lambda store: store.put_if_absent("x", b"x"),
    lambda store: store.put_if_match("x", b"x", '"etag"'),
    lambda store: list(store.list()),
    lambda store: store.delete("x"),
    lambda store: store.copy("x", "y"),
    lambda store: store.checksum("x"),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_bucket_is_named(seaweed: S3Settings, call: Callable[[ObjectStore], object]) -> None:
    store = open_store("s3://no-such-bucket/prefix", s3=seaweed, network=NETWORK)
    with pytest.raises(NotFoundError, match="bucket not found: s3://no-such-bucket") as caught:
        call(store)
    assert caught.value.hint


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_secret_is_told_as_such(
    seaweed: S3Settings, bucket: str, call: Callable[[ObjectStore], object]
) -> None:
    wrong = S3Settings.model_validate({**seaweed.model_dump(), "secret_key": "wrong"})
    with pytest.raises(CredentialsError, match="credentials were rejected") as caught:
        call(open_store(bucket, s3=wrong, network=NETWORK))
    assert "SignatureDoesNotMatch" in (caught.value.cause or "")
    assert "wrong" not in repr(caught.value.to_dict())


def told_within_ten_seconds(call: Callable[[ObjectStore], object], *, listening: bool) -> UnavailableError:
    """The error of a call to a server that is away. This machine may stand still for a while, but not three times."""
    took = []
    for _ in range(3):
        with socket.socket() as server:  # a new one each time: one that was away too often is not asked again
            server.bind(("127.0.0.1", 0))
            if listening:
                server.listen()
            s3 = S3Settings(endpoint=f"http://127.0.0.1:{server.getsockname()[1]}", access_key="k", secret_key="s")
            start = time.monotonic()
            with pytest.raises(UnavailableError, match="no response") as caught:
                call(open_store("s3://bucket", s3=s3, network=NetworkSettings()))
            took.append(time.monotonic() - start)
        if took[-1] < 10:
            return caught.value
    raise AssertionError(f"it took {took} s")


def test_a_refused_connection_is_told_within_ten_seconds() -> None:
    error = told_within_ten_seconds(lambda store: store.get("x"), listening=False)
    assert error.cause == "connection refused"
    assert "s3.endpoint" in (error.hint or "")


@pytest.mark.parametrize("call", [CALLS[0], *(pytest.param(CALLS[n], marks=pytest.mark.slow) for n in (3, 6))])
def test_a_server_that_never_answers_is_told_within_ten_seconds(call: Callable[[ObjectStore], object]) -> None:
    error = told_within_ten_seconds(call, listening=True)
    assert error.cause == "timeout"
    assert error.hint


def test_an_object_is_opened_by_its_uri(
    open_at: Callable[[str], ObjectStore], request: pytest.FixtureRequest, services: Services
) -> None:
    server = request.node.callspec.params["open_at"]
    is_s3 = server not in ("local", "azurite")
    s3 = S3Settings.model_validate(getattr(services, server).access.settings()) if is_s3 else S3Settings()
    store, key = open_object(f"{open_at('').root}/some folder/object%20", s3=s3, network=NETWORK)
    store.put(key, b"x")
    assert keys(open_at("")) == ["some folder/object%20"]
