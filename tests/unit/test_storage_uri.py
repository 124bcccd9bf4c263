"""Where an object lies, as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from frazil.errors import UsageError
from frazil.storage.uri import Location, join, normalise, parse

names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: name not in (".", "..")
)
object_keys = st.lists(names, min_size=1, max_size=5).map("/".join)
buckets = st.from_regex(r"[a-z0-9][a-z0-9.-]{2,20}", fullmatch=True)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("/x/y", "file:///x/y"),
        ("file:/x/y", "file:///x/y"),
        ("file:///x/y/", "file:///x/y"),
        ("file://localhost/x", "file:///x"),
        ("FILE:///x", "file:///x"),
        ("//x//y", "file:///x/y"),
        ("/x/./y/../z", "file:///x/z"),
        ("/", "file:///"),
        ("file:///", "file:///"),
        ("/with space/%20/ü?#+", "file:///with space/%20/ü?#+"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3a://bucket/a/b", "s3://bucket/a/b"),
        ("s3n://bucket/a/b/", "s3://bucket/a/b"),
        ("S3://bucket/A%2FB", "s3://bucket/A%2FB"),
        ("s3://bucket/a?b#c d+e", "s3://bucket/a?b#c d+e"),
        ("s3://bucket//a//b", "s3://bucket//a//b"),
        ("s3://bucket/a/../b", "s3://bucket/a/../b"),
        ("abfs://Box@Account.dfs.core.windows.net/p", "abfss://box@account.dfs.core.windows.net/p"),
        ("abfss://box@account.dfs.core.windows.net/p/", "abfss://box@account.dfs.core.windows.net/p"),
        ("az://box/p", "az://box/p"),
        ("gs://bucket/p", "gs://bucket/p"),
    ],
)
def test_one_place_has_one_normal_form(written: str, expected: str) -> None:
    assert normalise(written) == expected


def test_a_relative_path_begins_at_the_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("data/x").path == tmp_path / "data/x"
    assert parse("./a:b").path == tmp_path / "a:b"
    assert parse("a:b").path == tmp_path / "a:b"
    assert parse("../x", relative_to=Path("/a/b")).path == Path("/a/x")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("HDFS://nn:8020/a/b/", "hdfs://nn:8020/a/b"),
        ("hdfs:///a", "hdfs:///a"),
        ("hdfs://nn", "hdfs://nn"),
        ("viewfs://cluster/a b%20", "viewfs://cluster/a b%20"),
    ],
)
def test_a_place_on_hdfs_is_one_that_needs_the_jvm(written: str, expected: str) -> None:
    assert normalise(written) == expected
    assert parse(written).needs_jvm
    assert not parse("s3://bucket/key").needs_jvm


@pytest.mark.parametrize(
    "written",
    [
        "",
        "ftp://host/x",
        "http://host/x",
        "s3://",
        "s3:///key",
        "s3:/bucket/key",
        "s3:bucket",
        "s3a:bucket",
        "file:x",
        "file://host/x",
        "s3://buc ket/x",
        "s3://user@bucket/x",
        "abfss://container/path",
        "abfss://container@/path",
        "az:///path",
        "/a\0b",
    ],
)
def test_what_is_no_location_is_refused_with_the_valid_forms(written: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(written)
    for form in ("/path", "file://", "s3://", "abfss://", "az://", "gs://"):
        assert form in (caught.value.hint or "")


def test_an_azure_authority_has_container_and_account() -> None:
    location = parse("abfss://box@account.dfs.core.windows.net/a/b")
    assert (location.bucket, location.account, location.key) == ("box", "account", "a/b")
    assert parse("az://box/a").account is None


@settings(deadline=None)
@given(object_keys)
def test_three_spellings_of_a_local_path_are_one_place(key: str) -> None:
    assert normalise(f"/{key}") == normalise(f"file:/{key}") == normalise(f"file:///{key}") == f"file:///{key}"


@settings(deadline=None)
@given(buckets, object_keys)
def test_three_spellings_of_s3_are_one_place_and_the_key_stays_as_it_is(bucket: str, key: str) -> None:
    for scheme in ("s3", "s3a", "s3n"):
        assert parse(f"{scheme}://{bucket}/{key}") == Location("s3", bucket, key)


@settings(deadline=None)
@given(st.text())
def test_the_normal_form_is_its_own_normal_form(written: str) -> None:
    try:
        once = normalise(written)
    except UsageError:
        assume(False)
    assert normalise(once) == once


@settings(deadline=None)
@given(st.sampled_from(["/top", "file:/top", "s3a://bucket", "s3://bucket/root/", "gs://bucket/r"]), object_keys)
def test_joining_appends_the_key_and_nothing_else(root: str, key: str) -> None:
    assert join(root, key) == f"{normalise(root)}/{key}"
    assert join(root, "a", key) == f"{normalise(root)}/a/{key}"
    assert parse(join(root, key)) == parse(root).child(key)


def test_joining_to_the_root_folder_keeps_three_slashes() -> None:
    assert join("/", "a") == "file:///a"
