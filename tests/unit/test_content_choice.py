"""What people type to mean objects: buckets, times, conditions, and the places where pages end."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.cli.content_read import parse_time
from frazil.cli.printing import visible
from frazil.content.buckets import bucket_of, folder_of, is_folder, nearest
from frazil.content.columns import OBJECTS
from frazil.content.query.conditions import list_conditions
from frazil.content.query.filters import ObjectFilter
from frazil.content.query.objects import HISTORY_COLUMNS, LIST_COLUMNS, OBJECT_COLUMNS
from frazil.content.query.order import HitOrder
from frazil.errors import UsageError
from tests.content_kit import an_object


def test_a_bucket_is_a_name_or_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    assert bucket_of("my-bucket") == bucket_of("s3://my-bucket") == bucket_of("s3a://my-bucket/") == "my-bucket"
    assert (
        bucket_of("photos")
        == bucket_of("./photos/")
        == bucket_of(f"file://{tmp_path}/photos")
        == (f"file://{tmp_path}/photos")
    )
    assert bucket_of("./not-there") == f"file://{tmp_path}/not-there"
    assert bucket_of("~/photos") == f"file://{Path.home()}/photos"
    assert bucket_of("/a b/ü%20") == "file:///a b/ü%20"
    assert is_folder(bucket_of(".")) and not is_folder("photos")
    assert folder_of(bucket_of("/a b/ü")) == Path("/a b/ü")


@pytest.mark.parametrize("text", ["", " ", "s3://", "s3://bucket/inside", "\udcff"])
def test_what_is_no_bucket_is_refused(text):
    with pytest.raises(UsageError):
        bucket_of(text)


def test_the_nearest_bucket():
    assert nearest("phtos", ["photos", "logs"]) == "photos"
    assert nearest("archive", ["photos", "logs"]) is None
    assert nearest("photos", []) is None
    folders = ["file:///data/pictures", "file:///mnt/pictures", "file:///data/work/tmp"]
    assert nearest("file:///data/pictrues", folders) == "file:///data/pictures"
    assert nearest("file:///mnt/picture", folders) == "file:///mnt/pictures"
    assert nearest("pictures", folders[:1]) == folders[0], "somebody stands in another folder"
    assert nearest("file:///data/work/elsewhere", folders) is None


def test_times():
    assert parse_time(None) is None
    assert parse_time("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC)
    assert parse_time("2026-01-31T12:00:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)
    ago = parse_time("7d")
    assert ago is not None
    assert abs(datetime.now(UTC) - timedelta(days=7) - ago) < timedelta(minutes=1)


@pytest.mark.parametrize("text", ["yesterday", "7", "99999999w", "2026-13-01"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UsageError):
        parse_time(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_size": 2, "max_size": 1},
        {"since": datetime(2026, 1, 2, tzinfo=UTC), "until": datetime(2026, 1, 2, tzinfo=UTC)},
        {"tags": ("=x",)},
        {"tags": ("",)},
    ],
)
def test_a_choice_that_can_mean_nothing_is_refused(wrong):
    with pytest.raises(UsageError) as refused:
        ObjectFilter(**wrong)
    assert refused.value.hint


def test_tags_must_all_hold():
    tags = [{"a": "1", "b": "2"}, {"a": "1"}, {"a": ""}, {}, None]
    rows = [an_object(str(n), tags=None if t is None else list(t.items())) for n, t in enumerate(tags)]
    table = pa.Table.from_pylist(rows, schema=OBJECTS)

    def found(*tags: str) -> list[str]:
        truths = [
            condition.holds(*(table.column(name).combine_chunks() for name in condition.columns))
            for condition in list_conditions(ObjectFilter(tags=tags))
        ]
        return table.filter(pa.array(np.all(truths, axis=0))).column("key").to_pylist()

    assert found() == ["0", "1", "2", "3", "4"]
    assert found("a") == ["0", "1", "2"]
    assert found("a=1") == ["0", "1"]
    assert found("a=") == ["2"]
    assert found("a=1", "b") == ["0"]
    assert found("c") == []


def test_what_is_shown_is_in_the_tables():
    from frazil.content.columns import JOURNAL

    assert set(LIST_COLUMNS) | set(OBJECT_COLUMNS) <= set(OBJECTS.names)
    assert set(HISTORY_COLUMNS) <= set(JOURNAL.names)
    assert "frazil_order" not in OBJECT_COLUMNS


@pytest.mark.parametrize("sort", ["key", "size", "modified"])
def test_the_end_of_a_page_is_found_again(sort):
    rows = pa.table({"rank": [5], "bucket": ["photos"], "key": ["a\n'ü\u202e"], "version_id": ["v"]})
    place = HitOrder.of_list(sort).cursor(rows)
    assert place.isascii() and place.replace("-", "").replace("_", "").isalnum()
    assert HitOrder.of_list(sort, place).after == (5, "photos", "a\n'ü\u202e", "v")


def test_the_end_of_a_page_of_a_list_by_key_needs_no_rank():
    token = base64.urlsafe_b64encode(b'["key","photos","a",""]').decode().rstrip("=")
    assert HitOrder.of_list("key", token).after == (0, "photos", "a", "")
    with pytest.raises(UsageError, match="after"):
        HitOrder.of_list("size", token)


@pytest.mark.parametrize("text", ["", "x", "!!", "bm90IGpzb24", "W10", "WyJrZXkiXQ", "WyJrZXkiLDEsMiwzXQ", "ü"])
def test_what_is_no_end_of_a_page_is_refused(text):
    with pytest.raises(UsageError, match="after"):
        HitOrder.of_list("key", text)


def test_the_end_of_a_page_in_another_order_is_refused():
    rows = pa.table({"rank": [5], "bucket": ["photos"], "key": ["a"], "version_id": [""]})
    with pytest.raises(UsageError, match="after"):
        HitOrder.of_list("modified", HitOrder.of_list("size").cursor(rows))
    with pytest.raises(UsageError, match="order"):
        HitOrder.of_list("colour")  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.text())
def test_text_of_strangers_cannot_do_anything_to_a_terminal(text):
    shown = visible(text)
    assert all(char.isprintable() or char in "\u200c\u200d" for char in shown)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_two_texts_never_look_the_same(one, other):
    assert (visible(one) == visible(other)) == (one == other)


def test_ordinary_names_look_as_they_are():
    for text in ("a/b c.jpg", "été.jpg", "写真/🦩.jpg", "👩‍🔬.png", "100%+1.txt", "~#?&"):
        assert visible(text) == text
    assert visible("a\nb\x1b[31m\\n\u202e\u2028") == "a\\nb\\x1b[31m\\\\n\\u202e\\u2028"
