"""One spelling for one place; which names look like Iceberg's; what a server that fails leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from frazil.errors import NotAllowedError, UnavailableError
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import open_store
from frazil.tables import bulk_delete
from frazil.tables.metadata.locations import TableStorage, canonical_uri, is_inside, list_own_folders, overlaps
from frazil.upkeep.expiry.orphan_kinds import Layout
from frazil.upkeep.model import removal_outcome


@pytest.mark.parametrize(
    "spellings",
    [
        ("/w/t/data/a.parquet", "file:/w/t/data/a.parquet", "file:///w/t/data/a.parquet", "file://localhost/w/t/data/a.parquet"),
        ("/w//t/./data/a.parquet", "/w/t/x/../data/a.parquet"),
        ("s3://b/t/a b%20c+d.parquet", "s3a://b/t/a b%20c+d.parquet", "s3n://b/t/a b%20c+d.parquet"),
        ("s3://b", "s3a://b/"),
    ],
)  # fmt: skip
def test_spellings_of_one_place_are_one(spellings):
    assert len({canonical_uri(uri) for uri in spellings}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/t/a%20b", "s3://b/t/a b"),
        ("s3://b/t", "s3://c/t"),
        ("s3://b/T", "s3://b/t"),
        ("s3://b/w/t", "/w/t"),
        ("s3://b/t/a+b", "s3://b/t/a b"),
    ],
)
def test_different_places_stay_different(one, other):
    assert canonical_uri(one) != canonical_uri(other)


def test_a_folder_reached_through_a_link_is_the_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert canonical_uri(f"file:{tmp_path}/link/data/a.parquet") == canonical_uri(f"{tmp_path}/real/data/a.parquet")


def test_a_name_that_begins_like_a_folder_does_not_lie_in_it():
    assert is_inside("s3://b/t/a", "s3://b/t")
    assert not is_inside("s3://b/t2/a", "s3://b/t")
    assert overlaps("s3://b/t", "s3://b/t/inner")
    assert overlaps("s3://b/t/inner", "s3://b/t")
    assert not overlaps("s3://b/t", "s3://b/t2")


def table(location: str = "s3a://b/w/t", **properties: str) -> SimpleNamespace:
    named = {key.replace("_", "."): value for key, value in properties.items()}
    return SimpleNamespace(
        location=lambda: location, metadata=SimpleNamespace(properties=named), io=SimpleNamespace(properties={})
    )


def kind(name: str, found: tuple[str, ...] = (), **properties: str) -> str | None:
    return Layout(table(**properties)).kind(f"s3://b/w/t/{name}", found)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("data/00000-1-abc.parquet", "data"),
        ("data/day=2026-01-01/a.orc", "data"),
        ("data/_private=1/a.parquet", "data"),
        ("data/0101/1100/a.puffin", "data"),
        ("metadata/00003-abc.metadata.json", "metadata.json"),
        ("metadata/v3.metadata.json", "metadata.json"),
        ("metadata/v3.gz.metadata.json", "metadata.json"),
        ("metadata/snap-1-1-abc.avro", "manifest"),
        ("metadata/abc-m0.avro", "manifest"),
        ("metadata/1-abc.stats", "statistics"),
        ("metadata/partition-stats-1.parquet", "statistics"),
        ("metadata/frazil-clock-1", "probe"),
        ("data/_SUCCESS", None),
        ("data/_temporary/0/a.parquet", None),
        ("data/.hidden.parquet", None),
        ("data/readme.txt", None),
        ("data/a.parquet.tmp", None),
        ("metadata/version-hint.text", None),
        ("metadata/lock", None),
        ("a.parquet", None),
        ("old/a.parquet", None),
        ("data2/a.parquet", None),
        ("other/metadata/00003-abc.metadata.json", None),
    ],
)
def test_only_what_iceberg_would_have_written_there_can_be_an_orphan(name, expected):
    assert kind(name) == expected


def test_folders_that_the_table_names_count_where_they_lie_inside():
    assert kind("rows/a.parquet", write_data_path="s3://b/w/t/rows") == "data"
    assert kind("rows/a.parquet", write_data_path="s3://b/elsewhere/rows") is None
    assert kind("a.parquet", write_data_path="s3://b/w/t") is None, "the whole folder is nobody's data folder"
    assert list_own_folders(table(write_data_path="s3n://b/x")) == ["s3://b/w/t", "s3://b/x"]


def test_a_checksum_goes_with_its_file_and_alone_where_that_is_gone(tmp_path):
    location = canonical_uri(str(tmp_path))
    layout = Layout(table(str(tmp_path)))
    assert layout.kind(f"{location}/data/.a.parquet.crc", {f"{location}/data/a.parquet"}) is None
    assert layout.kind(f"{location}/data/.a.parquet.crc", ()) == "checksum"
    assert layout.kind(f"{location}/.a.parquet.crc", ()) is None
    assert kind("data/.a.parquet.crc") is None, "in a bucket it is somebody else's"


class Script:
    """A store whose deletes a test decides about."""

    root = "s3://b/w/t"

    def __init__(self, delete: Callable[..., None]) -> None:
        self.delete = delete


class OneStore:
    def __init__(self, delete: Callable[..., None]) -> None:
        self.store = Script(delete)

    def find(self, uri: str):
        return self.store, uri.removeprefix("s3://b/w/t/")


def remove(files: int, delete: Callable[..., None], stop: threading.Event | None = None) -> bulk_delete.DeletedFiles:
    doomed = [(f"s3://b/w/t/data/{i}.parquet", 10) for i in range(files)]
    return bulk_delete.delete_files(OneStore(delete), doomed, stop or threading.Event())


def test_everything_is_deleted_once_in_bounded_parts():
    seen: list[str] = []
    sizes: list[int] = []

    def delete(*keys: str) -> None:
        sizes.append(len(keys))
        seen.extend(keys)

    done = remove(1001, delete)
    assert (done.files, done.size, done.left) == (1001, 10010, {})
    assert sorted(seen) == sorted(f"data/{i}.parquet" for i in range(1001))
    assert max(sizes) <= 250


def test_what_fails_is_told_by_name_and_the_rest_is_deleted():
    def delete(*keys: str) -> None:
        if "data/0.parquet" in keys:
            raise NotAllowedError("not this one")

    done = remove(1000, delete)
    assert (done.files, len(done.left)) == (750, 250)
    assert isinstance(done.error, NotAllowedError)
    told = removal_outcome("reclaim", done)
    assert (told.result, told.files_removed, told.bytes_reclaimed) == ("done", 750, 7500)
    assert told.reason == "250 files are left for later: not this one"


def test_a_server_that_fails_again_and_again_is_left_alone():
    calls: list[int] = []

    def delete(*keys: str) -> None:
        calls.append(len(keys))
        raise UnavailableError("SlowDown")

    done = remove(10_000, delete)
    assert done.files == 0
    assert len(done.left) == 10_000
    assert len(calls) <= 8
    assert removal_outcome("reclaim", done).result == "failed"


def test_nothing_more_begins_after_a_stop():
    stop = threading.Event()
    done = remove(5000, lambda *_: stop.set(), stop)
    assert 0 < done.files < 5000
    assert done.files + len(done.left) == 5000
    assert done.error is None


def test_a_key_that_no_store_can_name_stays_for_good():
    done = bulk_delete.delete_files(OneStore(lambda *_: None), [("s3://b/w/t/data//a.parquet", 1)], threading.Event())
    assert (done.files, done.left, done.unusable) == (0, {}, ["s3://b/w/t/data//a.parquet"])


def test_a_local_file_takes_its_checksum_along(tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("a.parquet", ".a.parquet.crc", "b.parquet", ".b.parquet.crc"):
        (tmp_path / "data" / name).write_text("x")

    class Local:
        def find(self, uri: str):
            store = open_store(str(tmp_path), s3=S3Settings(), network=NetworkSettings())
            return store, uri.removeprefix(f"{tmp_path}/")

    done = bulk_delete.delete_files(Local(), [(f"{tmp_path}/data/a.parquet", 1)], threading.Event())
    assert done.files == 1
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == [".b.parquet.crc", "b.parquet"]


def storage(table: SimpleNamespace, s3: S3Settings) -> TableStorage:
    settings = SimpleNamespace(model=SimpleNamespace(network=NetworkSettings(), s3=s3))
    return TableStorage(settings, SimpleNamespace(s3=None), table)


def test_keys_that_a_catalog_lends_for_a_table_are_used():
    lent = table()
    lent.io.properties |= {"s3.access-key-id": "lent", "s3.secret-access-key": "x", "s3.endpoint": "http://s3:1"}
    s3 = storage(lent, S3Settings(profile="mine")).s3
    assert (s3.access_key, s3.profile, s3.endpoint) == ("lent", None, "http://s3:1")
    assert storage(table(), S3Settings(profile="mine")).s3.profile == "mine"


def test_a_file_is_asked_for_in_the_folder_that_the_table_has():
    """A key that may only see the table's folder is enough for all that lies there."""
    keys = S3Settings(access_key="key", secret_key="secret")
    places = storage(table(write_data_path="s3://b/w/t/rows"), keys)
    store, key = places.find("s3a://b/w/t/metadata/a.avro")
    assert (store.root, key) == ("s3://b/w/t", "metadata/a.avro")
    store, key = places.find("s3://b/other/a.avro")
    assert (store.root, key) == ("s3://b", "other/a.avro")
