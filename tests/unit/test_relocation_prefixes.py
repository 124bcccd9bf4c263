"""Where a path leads after relocation."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import IntegrityError, UsageError
from frazil.tables.relocation import PrefixMap, UnmappedPathError


@pytest.mark.parametrize(
    ("pair", "path", "expected"),
    [
        (("/a/b", "/z"), "/a/b/c/d", "/z/c/d"),
        (("/a/b/", "/z/"), "/a/b/c", "/z/c"),
        (("/a/b", "/z"), "/a/b", "/z"),
        (("/a/b", "/z"), "/a/b/", "/z/"),
        (("/a", "file:///z"), "file:/a/x", "file:///z/x"),
        (("file:/a", "/z"), "file:///a/x", "/z/x"),
        (("file:///a", "file:/z"), "/a/x", "file:/z/x"),
        (("/a", "/z"), "FILE://localhost/a/x", "/z/x"),
        (("s3://b/t", "s3a://c/u"), "s3a://b/t/x", "s3a://c/u/x"),
        (("s3a://b/t", "s3://c"), "s3n://b/t/x", "s3://c/x"),
        (("s3://b", "/z"), "S3A://b/t/x", "/z/t/x"),
        (("s3://b", "/"), "s3://b/x", "/x"),
        (("/", "s3://b"), "/x/y", "s3://b/x/y"),
        (("hdfs://h:8020/t", "gs://b/t"), "hdfs://h:8020/t/x", "gs://b/t/x"),
        (("/ä %20/x=ü", "/z"), "/ä %20/x=ü/..a/.b/c%2F", "/z/..a/.b/c%2F"),
    ],
)
def test_a_path_gets_the_spelling_of_the_target_prefix(pair: tuple[str, str], path: str, expected: str) -> None:
    assert PrefixMap([pair]).map(path) == expected
    assert PrefixMap([pair]).covers(path)


@pytest.mark.parametrize(
    "path",
    [
        "/a/bc", "/a/bc/x", "/a", "/A/b/x", "s3://a/b/x", "file://host/a/b/x", "hdfs:///a/b", "", "a/b/x", "file:a/b",
        "/a/b/../x", "/a/b/..", "/a/b/./x", "/a/b//x", "/a/b/x//", "//a/b", "/a//b/x", "/x/../a/b/c", "file:////a/b/x",
        "s3:/a/b", "s3://",
    ],
)  # fmt: skip
def test_what_no_prefix_covers_or_what_escapes_is_refused(path: str) -> None:
    """A prefix ends at a '/', and '..' or an empty component hides where a path leads."""
    prefixes = PrefixMap([("/a/b", "/z")])
    assert not prefixes.covers(path)
    with pytest.raises(UnmappedPathError, match="'") as caught:
        prefixes.map(path)
    assert isinstance(caught.value, IntegrityError)
    assert path in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("prefix", ["", "a/b", "/a/../b", "/a//b", "s3://b/./x", "s3:///x", "file:x", "//a"])
def test_prefixes_that_say_no_place_are_refused(prefix: str) -> None:
    for pair in ((prefix, "/z"), ("/z", prefix)):
        with pytest.raises(UsageError, match="cannot be the prefix"):
            PrefixMap([pair])


def test_the_longest_prefix_decides_and_among_equal_ones_the_first() -> None:
    prefixes = PrefixMap([("/a", "/1"), ("file:/a/b/c", "/2"), ("file:///a/b", "/3"), ("/a/b/", "/4")])
    assert [prefixes.map(path) for path in ("/a/x", "file:/a/b/x", "/a/b/c/x", "/a/b", "/a/b/c")] == [
        "/1/x", "/3/x", "/2/x", "/3", "/2",
    ]  # fmt: skip


def test_a_pair_of_the_same_text_leaves_paths_as_they_are_spelled() -> None:
    prefixes = PrefixMap([("/a", "/a"), ("s3://b/t", "s3://b/t"), ("/a/meta", "/z")])
    for path in ("file:/a/x", "file:///a/x", "/a/x/", "FILE:/a/x", "s3a://b/t/x", "s3n://b/t"):
        assert prefixes.map(path) == path
    assert prefixes.map("file:/a/meta/x") == "/z/x"
    with pytest.raises(UnmappedPathError):
        prefixes.map("/a/../x")


def test_maps_are_compared_hashed_and_pickled_by_their_pairs() -> None:
    one, same, other = (PrefixMap([("/a", target)]) for target in ("/b", "/b", "/c"))
    assert one == same != other
    assert len({one, same, other}) == 2
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert again.map("/a/x") == "/b/x"


def test_strays_get_names_of_their_own_below_one_folder() -> None:
    prefixes = pickle.loads(pickle.dumps(PrefixMap([("/a", "/b")], strays="/b/gone")))
    assert prefixes.map("/a/x") == "/b/x"
    strays = [prefixes.map(path) for path in ("/c/x", "/c/y", "/a/../c/x", "s3://c/x", "c/x", "/a//x")]
    assert len(set(strays)) == 6
    assert all(path.startswith("/b/gone/") and ".." not in path and "//" not in path for path in strays)
    assert prefixes.map("file:///c/x") == prefixes.map("/c/x")
    assert prefixes != PrefixMap([("/a", "/b")])


def test_order_is_kept_only_below_one_prefix_without_others_in_it() -> None:
    prefixes = PrefixMap([("/a", "/z"), ("/b", "/y"), ("/a/m", "/x")])
    assert prefixes.keeps_order("/b/1", "/b/2")
    assert not prefixes.keeps_order("/a/1", "/b/1")
    assert not prefixes.keeps_order("/a/l/1", "/a/n/1")  # what lies between may go elsewhere
    assert prefixes.keeps_order("/a/m/1", "/a/m/2")
    assert not prefixes.keeps_order("/c/1", "/c/2")


_NAMES = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: name not in (".", "..")
)
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)


@given(st.sampled_from(["/old/t", "file:///old/t", "s3://old/t"]), st.sampled_from(["/new", "s3a://new/x"]), _PATHS)
def test_the_inverse_map_leads_back(source: str, target: str, rest: str) -> None:
    there, back = PrefixMap([(source, target)]), PrefixMap([(target, source)])
    moved = there.map(f"{source}/{rest}")
    assert moved == f"{target}/{rest}"
    assert back.map(moved) == f"{source}/{rest}"
