"""Jars: fetched once by coordinates, checked by checksum, whole or not at all."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from frazil.errors import IntegrityError, SetupError
from frazil.spark.jars import cached_jars, fetch_jars, read_lock, sha256_of
from frazil.spark.java import find_java

COORDINATE = "org.example:tiny:1.0"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A Maven repository in a folder, and the Ivy settings that lead to it: what a company's mirror is."""
    folder = tmp_path / "repository" / "org" / "example" / "tiny" / "1.0"
    folder.mkdir(parents=True)
    (folder / "tiny-1.0.jar").write_bytes(b"tiny jar")
    pom = "<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId><artifactId>tiny</artifactId>"
    (folder / "tiny-1.0.pom").write_text(pom + "<version>1.0</version></project>")
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        "<ivysettings><settings defaultResolver='mirror'/><resolvers><ibiblio name='mirror' m2compatible='true' "
        f"root='{(tmp_path / 'repository').as_uri()}/'/></resolvers></ivysettings>"
    )
    return settings


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return write_lock(tmp_path, COORDINATE)


def write_lock(folder: Path, coordinate: str, content: bytes = b"tiny jar") -> Path:
    import hashlib

    entry = {"coordinate": coordinate, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    path = folder / "lock.json"
    path.write_text(json.dumps({"jars": [entry]}))
    return path


def test_a_jar_is_fetched_by_its_coordinate_and_then_left_alone(tmp_path, repository, lock):
    said: list[str] = []
    [jar] = fetch_jars(tmp_path / "cache", find_java(), lock=lock, ivy_settings=repository, progress=said.append)
    assert jar.read_bytes() == b"tiny jar"
    assert said == ["downloading 1 jars, 0 MB"]
    again = fetch_jars(
        tmp_path / "cache", find_java(), lock=lock, ivy_settings=tmp_path / "gone.xml", progress=said.append
    )
    assert again == [jar]
    assert len(said) == 1, "the second time nothing is fetched, so no network is needed"


def test_a_jar_with_other_bytes_than_locked_never_enters_the_cache(tmp_path, repository):
    lock = write_lock(tmp_path, COORDINATE, content=b"other jar")
    with pytest.raises(IntegrityError, match=r"is not org\.example:tiny:1\.0"):
        fetch_jars(tmp_path / "cache", find_java(), lock=lock, ivy_settings=repository)
    assert [p.name for p in (tmp_path / "cache" / "jars").iterdir()] == [".lock"]


def test_a_jar_that_nobody_has_is_named(tmp_path, repository):
    lock = write_lock(tmp_path, "org.example:absent:9")
    with pytest.raises(SetupError) as missing:
        fetch_jars(tmp_path / "cache", find_java(), lock=lock, ivy_settings=repository)
    assert "spark.ivy_settings" in (missing.value.hint or "")


def test_a_spoiled_jar_is_refused_and_fetched_anew_by_setup(tmp_path, repository, lock):
    [jar] = fetch_jars(tmp_path / "cache", find_java(), lock=lock, ivy_settings=repository)
    jar.write_bytes(b"tiny jxr")
    with pytest.raises(IntegrityError, match="is not"):
        cached_jars(tmp_path / "cache", lock)
    fetch_jars(tmp_path / "cache", find_java(), lock=lock, ivy_settings=repository)
    assert jar.read_bytes() == b"tiny jar"


def test_two_that_fetch_at_once_do_not_disturb_each_other(tmp_path, repository, lock):
    found: list[list[Path]] = []
    fetch = lambda: found.append(fetch_jars(tmp_path / "cache", find_java(), lock=lock, ivy_settings=repository))  # noqa: E731
    threads = [threading.Thread(target=fetch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert {tuple(f) for f in found} == {(tmp_path / "cache" / "jars" / "tiny-1.0.jar",)}


def test_without_the_jars_the_hint_is_setup(tmp_path):
    with pytest.raises(SetupError) as missing:
        cached_jars(tmp_path)
    assert missing.value.hint == "frazil setup"


def test_the_lock_names_what_spark_needs():
    names = {jar.parts[1] for jar in read_lock()}
    assert names == {"iceberg-spark-runtime-4.1_2.13", "iceberg-aws-bundle", "sqlite-jdbc"}
    assert all(len(jar.sha256) == 64 and jar.size > 0 for jar in read_lock())


def test_the_checksum_is_of_every_byte(tmp_path):
    (tmp_path / "a").write_bytes(b"a" * 1_000_000)
    before = sha256_of(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"a" * 999_999 + b"b")
    assert sha256_of(tmp_path / "a") != before
