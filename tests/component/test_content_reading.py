"""Lists, one object, its history and sums, out of the tables alone: no server, no JVM, no bucket."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from frazil.cli.run import run_command
from frazil.content.columns import ORDER
from frazil.content.query.filters import ObjectFilter
from frazil.content.query.objects import list_objects
from frazil.content.query.totals import totals
from frazil.errors import IntegrityError, NotFoundError
from frazil.tables.reading import column_blocks
from tests.content_kit import NOON, Content, a_change, an_object, at

ODD = "odd/new\nline \x1b[31mred\x1b[0m \u202egpj.\\x + 100% ü"


class Cli:
    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.home, self._capfd = home, capfd

    def __call__(self, *args: str) -> tuple[int, str, str]:
        self._capfd.readouterr()
        code = run_command("content", "content", [*args, "--set", f"home={self.home}"])
        out, errors = self._capfd.readouterr()
        return code, out, errors

    def ok(self, *args: str) -> str:
        code, out, errors = self(*args)
        assert code == 0, errors
        return out

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--output", "json"))

    def keys(self, *args: str) -> list[str]:
        return [row["key"] for row in self.json("list", *args)]

    def fails(self, *args: str, code: int, says: list[str]) -> None:
        got, _, errors = self(*args)
        assert got == code, errors
        assert "error: " in errors and "Try: " in errors and "Traceback" not in errors
        for words in says:
            assert words in errors, errors


@pytest.fixture
def cli(home, capfd) -> Iterator[Cli]:
    yield Cli(home, capfd)
    structlog.reset_defaults()  # a command has told it to write to what was standard error then


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A bucket without versions, one with, and a folder."""
    home: Path = tmp_path_factory.mktemp("content")
    content = Content.at(home)
    content.add_objects(
        [
            an_object("2026/a.jpg", size=5_000_000, content_type="image/jpeg", tags=[("bird", "heron")]),
            an_object(
                "2026/b.png", size=2_000_000, content_type="image/png", tags=[("bird", "")], last_modified=at(60)
            ),
            an_object(
                "notes.txt", size=7, content_type="text/plain", storage_class="GLACIER", last_modified=at(-86400)
            ),
            an_object("gone.txt", size=None, is_latest=False, is_deleted=True, last_modified=None, changed_at=at(9)),
            an_object(ODD, size=1, user_metadata=[("by", "x\x1b")]),
        ]
    )
    old = {"bucket": "archive", "version_id": "v1", "is_latest": False}
    marker = {"bucket": "archive", "is_delete_marker": True, "size": None, "etag": None}
    content.add_objects(
        [
            an_object("k", **old, size=1),
            an_object("k", bucket="archive", version_id="v2", size=2, last_modified=at(1), check_after=at(5)),
            an_object("k", **old | {"version_id": "v0", "is_deleted": True}, last_modified=at(-1)),
            an_object("marked", **old, size=4),
            an_object("marked", **marker, version_id="m1", last_modified=at(2)),
            an_object("unmarked", **marker | {"is_latest": False}, version_id="m0", is_deleted=True),
        ]
    )
    content.add_objects([an_object("x", bucket="file:///tmp/pictures")])
    told = {"bucket": "archive", "version_id": "v1", "size": 1, "e_tag": "e1", "event_name": "ObjectCreated:Put"}
    time = NOON.replace(tzinfo=None)
    content.add_changes(
        [
            a_change(
                "k", "0B", "UPDATE_METADATA", **told | {"record_timestamp": time + timedelta(seconds=2)}, offset=7
            ),
            a_change("k", "0A", **told, offset=3, index=2),
            a_change("k", "0A", **told, offset=9),
            a_change("k", "!1", **told | {"version_id": None, "dialect": "observed"}, offset=4),
            a_change("other", "0A"),
        ]
    )
    return home


# -- list --------------------------------------------------------------------------------------------------------------


def test_a_list_shows_what_is_there_now(cli):
    assert cli.keys("photos") == ["2026/a.jpg", "2026/b.png", "notes.txt", ODD]
    assert cli.keys("s3://archive") == ["k"]
    assert cli.keys("file:///tmp/pictures") == ["x"]
    assert len(cli.keys()) == 6


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--prefix", "2026/"], ["2026/a.jpg", "2026/b.png"]),
        (["--prefix", "2026/", "--min-size", "2MB", "--max-size", "4.9MB"], ["2026/b.png"]),
        (["--max-size", "7"], ["notes.txt", ODD]),
        (["--since", "2026-01-31T12:00:01Z"], ["2026/b.png"]),
        (["--until", "2026-01-31T12:00:00"], ["notes.txt"]),
        (["--since", "2026-01-31T14:00:00+02:00", "--until", "2026-01-31T12:00:01Z"], ["2026/a.jpg", ODD]),
        (["--since", "1h"], []),
        (["--class", "glacier"], ["notes.txt"]),
        (["--type", "image/*"], ["2026/a.jpg", "2026/b.png"]),
        (["--type", "image/png"], ["2026/b.png"]),
        (["--type", "image"], []),
        (["--tag", "bird"], ["2026/a.jpg", "2026/b.png"]),
        (["--tag", "bird=heron"], ["2026/a.jpg"]),
        (["--tag", "bird", "--tag", "bird="], ["2026/b.png"]),
        (["--deleted", "too"], ["2026/a.jpg", "2026/b.png", "gone.txt", "notes.txt", ODD]),
        (["--deleted", "only"], ["gone.txt"]),
        (["--sort", "size"], ["2026/a.jpg", "2026/b.png", "notes.txt", ODD]),
        (["--sort", "modified"], ["2026/b.png", "2026/a.jpg", ODD, "notes.txt"]),
        (["--sort", "modified", "--deleted", "too"], ["2026/b.png", "2026/a.jpg", ODD, "notes.txt", "gone.txt"]),
    ],
    ids=str,
)  # fmt: skip
def test_filters_and_orders(cli, options, found):
    assert cli.keys("photos", *options) == found


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], [("k", "v2")]),
        (["--versions"], [("k", "v1"), ("k", "v2"), ("marked", "v1")]),
        (["--markers"], [("k", "v2"), ("marked", "m1")]),
        (["--versions", "--markers"], [("k", "v1"), ("k", "v2"), ("marked", "m1"), ("marked", "v1")]),
        (["--deleted", "only"], [("k", "v0")]),
        (["--deleted", "only", "--markers"], [("k", "v0"), ("unmarked", "m0")]),
    ],
    ids=str,
)
def test_versions_markers_and_tombstones_are_shown_if_wanted(cli, options, found):
    rows = cli.json("list", "archive", *options)
    assert [(row["key"], row["version_id"]) for row in rows] == found


def test_a_list_says_when_there_is_more(cli):
    code, out, errors = cli("list", "photos", "--limit", "2", "--output", "json")
    assert code == 0 and len(json.loads(out)) == 2
    assert "there are more" in errors
    assert "there are more" not in cli("list", "photos", "--limit", "4")[2]


def test_the_json_of_a_list(cli):
    (row,) = cli.json("list", "photos", "--prefix", "2026/a")
    assert row == {
        "bucket": "photos", "key": "2026/a.jpg", "version_id": "", "size": 5_000_000,
        "last_modified": "2026-01-31T12:00:00+00:00", "etag": "etag-2026/a.jpg", "storage_class": "STANDARD",
        "content_type": "image/jpeg", "tags": {"bird": "heron"}, "is_latest": True, "is_deleted": False,
        "is_delete_marker": False,
    }  # fmt: skip


def test_text_is_one_line_per_object_and_harmless_to_a_terminal(cli):
    out = cli.ok("list", "photos")
    assert len(out.splitlines()) == 5
    assert "\x1b" not in out and "\u202e" not in out
    assert "odd/new\\nline \\x1b[31mred" in out
    shown = cli.ok("show", "photos", ODD)
    assert "\x1b" not in shown and "by=x\\x1b" in shown
    assert cli.keys("photos", "--prefix", "odd") == [ODD]


def test_an_unknown_bucket_is_told_from_an_empty_answer(cli):
    assert cli.json("list", "photos", "--prefix", "nothing/") == []
    assert "(no objects)" in cli.ok("list", "photos", "--prefix", "nothing/")
    cli.fails("list", "phots", code=10, says=["'phots'", "known are: archive,", "frazil content list photos"])
    cli.fails("list", "./elsewhere", code=10, says=["frazil content scan /"])
    cli.fails("stats", "phots", code=10, says=["frazil content list photos"])


def test_names_that_strangers_chose_are_harmless_in_errors_too(tmp_path, capfd):
    Content.at(tmp_path).add_objects([an_object("a", bucket="photos\x1b[31m"), an_object("b", bucket="my photos")])
    cli = Cli(tmp_path, capfd)
    cli.fails("list", "my fotos", code=10, says=["'photos\\x1b[31m'", "frazil content list 'my photos'"])
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--min-size", "big"], "not a size"),
        (["--min-size", "2", "--max-size", "1"], "no size lies"),
        (["--since", "soon"], "no time"),
        (["--since", "1d", "--until", "2d"], "no time lies"),
        (["--tag", "=x"], "no key"),
    ],
    ids=str,
)
def test_bad_filters_are_refused(cli, options, says):
    cli.fails("list", "photos", *options, code=2, says=[says])


def test_without_a_table_the_way_to_one_is_shown(tmp_path, capfd):
    cli = Cli(tmp_path, capfd)
    for command in (["list"], ["show", "b", "k"], ["history", "b", "k"], ["stats"]):
        cli.fails(*command, code=10, says=["table content.", "does not exist yet", "frazil content scan"])
    structlog.reset_defaults()


# -- show, history, stats ----------------------------------------------------------------------------------------------


def test_one_object_with_its_versions(cli):
    found = cli.json("show", "archive", "k")
    assert (found["version_id"], found["size"], found["more_versions"]) == ("v2", 2, False)
    assert found["check_after"] == "2026-01-31T12:00:05+00:00"
    assert [v["version_id"] for v in found["versions"]] == ["v2", "v1", "v0"]
    assert [v["is_deleted"] for v in found["versions"]] == [False, False, True]
    assert "frazil_order" not in found
    text = cli.ok("show", "archive", "k")
    assert "pending check" in text and "asked again at 2026-01-31T12:00:05Z" in text
    assert "latest version" in text and "tombstone" in text


def test_versions_are_shown_in_the_order_of_their_sequences(tmp_path, capfd):
    """Events of one second, and copies that keep their time, have no order by time."""
    content = Content.at(tmp_path)

    def version(name: str, number: int, **more: Any) -> dict[str, Any]:
        order = dict.fromkeys(field.name for field in ORDER) | {"created": f"{number:02X}/{'0' * 16}"}
        return an_object("k", version_id=name, frazil_order=order, is_latest=False) | more

    content.add_objects([version("b", 1), version("c", 3, is_latest=True), version("a", 2, last_modified=at(9))])
    content.add_objects([version("d", 4, is_deleted=True)])
    content.add_objects([an_object("k", bucket="seen", version_id=v, is_latest=v == "a") for v in "bca"])

    def shown(bucket: str) -> list[str]:
        assert run_command("content", "content", ["show", bucket, "k", "-o", "json", "--set", f"home={tmp_path}"]) == 0
        return [row["version_id"] for row in json.loads(capfd.readouterr().out)["versions"]]

    assert shown("photos") == ["d", "c", "a", "b"]
    assert shown("seen")[0] == "a", "the latest one"


def test_another_version_of_an_object(cli):
    assert cli.json("show", "archive", "k", "--version-id", "v1")["size"] == 1
    assert cli.json("show", "photos", "notes.txt", "--version-id", "null")["size"] == 7
    cli.fails("show", "archive", "k", "--version-id", "v9", code=10, says=["no version 'v9'"])


def test_what_is_left_of_a_deleted_object(cli):
    found = cli.json("show", "photos", "gone.txt")
    assert found["is_deleted"] is True
    assert "pending check" not in cli.ok("show", "photos", "gone.txt")


def test_an_unknown_object(cli):
    cli.fails("show", "photos", "2026/c.jpg", code=10, says=["'2026/c.jpg'"])
    cli.fails("show", "phots", "a", code=10, says=["'phots'"])
    cli.fails("history", "photos", "nope", code=10, says=["'nope'"])


@pytest.mark.parametrize(
    ("typed", "near"),
    [("2026/a.jgp", "2026/a.jpg"), ("2025/b.png", "2026/b.png"), ("Notes.txt", "notes.txt"), ("note.txt", "notes.txt")],
)
def test_a_misspelt_key_names_the_nearest(cli, typed, near):
    for command in ("show", "history"):
        cli.fails(command, "photos", typed, code=10, says=[f"Try: frazil content {command} photos {near}"])


def test_a_key_that_is_like_no_other_names_none(cli):
    cli.fails("show", "photos", "x", code=10, says=["Try: frazil content list photos"])
    cli.fails("show", "photos", "2026/zebra.tiff", code=10, says=["Try: frazil content list photos --prefix 2026/"])


def test_the_history_of_an_object(cli):
    rows = cli.json("history", "archive", "k")
    assert [(row["offset"], row["index"], row["record_type"]) for row in rows] == [
        (4, 0, "CREATE"), (3, 2, "CREATE"), (9, 0, "CREATE"), (7, 0, "UPDATE_METADATA"),
    ]  # fmt: skip
    assert rows[-1]["record_timestamp"] == "2026-01-31T12:00:02+00:00"
    assert set(rows[0]) == {
        "record_timestamp", "record_type", "version_id", "is_delete_marker", "size", "e_tag", "storage_class",
        "dialect", "event_name", "sequence_number", "sequencer", "requester", "source_ip_address", "request_id",
        "topic", "partition", "offset", "index",
    }  # fmt: skip
    assert "ObjectCreated:Put" in cli.ok("history", "archive", "k")


def test_parts_of_a_history(cli):
    def offsets(*options: str) -> list[int]:
        return [row["offset"] for row in cli.json("history", "archive", "k", *options)]

    assert offsets("--limit", "2") == [9, 7]
    assert offsets("--version-id", "null") == [4]
    assert offsets("--version-id", "v1") == [3, 9, 7]
    assert offsets("--since", "2026-01-31T12:00:01Z") == [7]
    assert offsets("--until", "2026-01-31T12:00:01Z") == [4, 3, 9]
    assert offsets("--version-id", "v7") == []
    assert "there are more" in cli("history", "archive", "k", "--limit", "2")[2]


def test_sums(cli):
    found = cli.json("stats", "photos")
    assert found["bucket"] == "photos" and "groups" not in found
    assert found["total"] == {
        "objects": 4, "bytes": 7_000_008, "versions": 4, "version_bytes": 7_000_008, "tombstones": 1, "markers": 0,
        "oldest": "2026-01-30T12:00:00+00:00", "newest": "2026-01-31T12:01:00+00:00",
        "largest": {"bucket": "photos", "key": "2026/a.jpg", "version_id": "", "size": 5_000_000},
    }  # fmt: skip
    versioned = cli.json("stats", "archive")["total"]
    wanted = {"objects": 1, "versions": 3, "bytes": 2, "version_bytes": 7, "tombstones": 2, "markers": 1}
    assert {name: versioned[name] for name in wanted} == wanted
    assert cli.json("stats")["total"]["objects"] == 6
    assert cli.json("stats", "photos", "--prefix", "none")["total"]["objects"] == 0


@pytest.mark.parametrize(
    ("options", "name", "found"),
    [
        (["--by", "prefix"], "prefix", {"2026/": 2, "": 1, "odd/": 1}),
        (["--by", "prefix", "--depth", "5"], "prefix", {"2026/": 2, "": 1, "odd/": 1}),
        (["--by", "class"], "class", {"STANDARD": 3, "GLACIER": 1}),
        (["--by", "type"], "type", {"image/jpeg": 1, "image/png": 1, "text/plain": 1, None: 1}),
        (["--by", "day"], "day", {"2026-01-31": 3, "2026-01-30": 1, None: 0}),
        (["--by", "bucket"], "bucket", {"photos": 4}),
    ],
    ids=str,
)
def test_sums_by_group(cli, options, name, found):
    answer = cli.json("stats", "photos", *options)
    assert answer["by"] == options[1] and answer["more"] is False
    assert {group[name]: group["objects"] for group in answer["groups"]} == found
    assert sum(group["bytes"] for group in answer["groups"]) == answer["total"]["bytes"]
    assert cli.ok("stats", "photos", *options)


def test_groups_are_the_largest_first_and_have_a_limit(cli):
    answer = cli.json("stats", "photos", "--by", "prefix", "--limit", "1")
    assert [group["prefix"] for group in answer["groups"]] == ["2026/"] and answer["more"] is True
    assert "there are more" in cli("stats", "photos", "--by", "prefix", "--limit", "1")[2]


def test_deeper_prefixes(tmp_path):
    content = Content.at(tmp_path)
    content.add_objects([an_object(key) for key in ("a/b/1", "a/b/2", "a/c/1", "a/1", "1", "a//1", "/1")])
    for depth, found in ((1, {"a/": 5, "": 1, "/": 1}), (2, {"a/b/": 2, "a/c/": 1, "a/": 1, "": 1, "a//": 1, "/": 1})):
        groups = totals(content.tables, by="prefix", depth=depth).groups
        assert {group["prefix"]: group["objects"] for group in groups} == found


# -- many --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> tuple[Content, list[dict[str, Any]]]:
    """600 rows in 6 files, some of them overlapping."""
    chance = random.Random(7)
    rows = []
    for number in range(600):
        times = None if chance.random() < 0.1 else at(chance.randrange(50))
        rows.append(
            an_object(
                f"{chance.choice('abc')}/{number:03}", bucket=chance.choice(["one", "two"]), last_modified=times,
                size=None if chance.random() < 0.1 else chance.randrange(30), is_latest=chance.random() < 0.8,
                is_deleted=chance.random() < 0.2, is_delete_marker=chance.random() < 0.1,
            )
        )  # fmt: skip
    content = Content.at(tmp_path_factory.mktemp("many"))
    ordered = sorted(rows, key=lambda row: (row["bucket"], row["key"]))
    for part in (ordered[:150], ordered[150:300], ordered[300:450], *(ordered[450 + n :: 3] for n in range(3))):
        content.add_objects(part)
    return content, rows


def by_name(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["bucket"], row["key"]


#: What has no size, or no time, comes last.
ORDERS = {
    "key": by_name,
    "size": lambda row: (row["size"] is None, -(row["size"] or 0), *by_name(row)),
    "modified": lambda row: (row["last_modified"] is None, NOON - (row["last_modified"] or NOON), *by_name(row)),
}


@pytest.mark.parametrize("sort", ORDERS)
@pytest.mark.parametrize("limit", [60, 1000])
def test_pages_have_every_object_once_and_in_order(many, sort, limit):
    content, rows = many
    there = [row for row in rows if row["is_latest"] and not row["is_deleted"] and not row["is_delete_marker"]]
    found: list[tuple[Any, ...]] = []
    pages, after = 0, None
    while pages == 0 or after is not None:
        page = list_objects(content.tables, ObjectFilter(), sort=sort, limit=limit, after=after)
        found += map(by_name, page.rows)
        pages, after = pages + 1, page.after
    assert found == [by_name(row) for row in sorted(there, key=ORDERS[sort])]
    assert pages == -(-len(there) // limit)


def test_a_list_by_key_does_not_read_files_that_come_later(many, monkeypatch):
    content, _ = many
    read: list[int] = []
    original = column_blocks.BlockScan.of

    def of(self, number):
        if number not in read:
            read.append(number)
        return original(self, number)

    monkeypatch.setattr(column_blocks.BlockScan, "of", of)
    first = list_objects(content.tables, ObjectFilter(), limit=10)
    assert len(read) <= 2  # one of the others has rows of the bucket too
    read.clear()
    list_objects(content.tables, ObjectFilter(), limit=10, after=first.after)
    assert len(read) <= 2
    read.clear()
    list_objects(content.tables, ObjectFilter(bucket="one", prefix="a/"), limit=1000)
    assert 1 <= len(read) < 6


def test_sums_are_those_of_the_rows(many):
    content, rows = many
    there = [r for r in rows if not r["is_deleted"] and not r["is_delete_marker"]]
    current = [r for r in there if r["is_latest"]]
    total = totals(content.tables).total
    assert total["objects"] == len(current)
    assert total["bytes"] == sum(r["size"] or 0 for r in current)
    assert total["version_bytes"] == sum(r["size"] or 0 for r in there)
    assert total["tombstones"] == sum(r["is_deleted"] for r in rows)
    assert total["markers"] == sum(r["is_delete_marker"] and not r["is_deleted"] for r in rows)
    assert total["newest"] == max(r["last_modified"] for r in current if r["last_modified"])


def test_a_missing_file_is_told_and_not_taken_for_nothing(tmp_path):
    content = Content.at(tmp_path)
    content.add_objects([an_object("a")])
    for file in tmp_path.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(IntegrityError, match=r"content\.objects"):
        list_objects(content.tables, ObjectFilter())
    with pytest.raises(IntegrityError, match=r"content\.objects"):
        totals(content.tables)


def test_an_empty_table_is_no_error(tmp_path):
    content = Content.at(tmp_path)
    content.add_objects([])
    assert list_objects(content.tables, ObjectFilter()).rows == []
    assert totals(content.tables, by="class").groups == []
    assert totals(content.tables).total["objects"] == 0
    with pytest.raises(NotFoundError, match="'b'"):
        list_objects(content.tables, ObjectFilter(bucket="b"))
