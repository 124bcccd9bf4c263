"""Search, facets, duplicates and export out of the table alone: what they find, and what they refuse."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import structlog
from pyiceberg.types import IntegerType, LongType

from frazil.cli.run import run_command
from frazil.content.columns import EXTRACTED, OBJECTS, USERS
from frazil.content.names import objects_name
from frazil.content.query import search as content_search
from frazil.content.query.duplicates import duplicates
from frazil.content.query.export import export
from frazil.content.query.facets import NAMES, facet, facets
from frazil.content.query.filters import Similar
from frazil.content.query.picture_hash import hash_of_object
from frazil.content.query.request import parse_search
from frazil.content.query.search import find, largest
from frazil.errors import NotFoundError, UsageError
from frazil.tables import commit_append, ensure_table
from frazil.tables.cache import ByteCache
from frazil.tables.reading import column_blocks as blocks
from frazil.tables.writing.data_files import WriteTarget
from frazil.tables.writing.position_deletes import write_position_deletes
from tests.content_kit import Content, an_object, at
from tests.tables import at as at_offset

MD5 = "0123456789abcdef" * 2
ODD = "odd/new\nline \x1b[31mred.jpg"


def taken(*when: int) -> datetime:
    return datetime(*when)  # type: ignore[arg-type]


def photos() -> list[dict[str, Any]]:
    exif = {"exif": {"Model": "EOS R5", "ISOSpeedRatings": 800}, "ocr": {"text": "Gare du NORD\nquai 3"}}
    other = {"exif": {"Model": "Z 7", "ISOSpeedRatings": 100}, "text": {"text": "the RÉSUMÉ of a heron"}}
    return [
        an_object(
            "2024/cat.jpg", size=5_000_000, content_type="image/jpeg", detected_type="image/jpeg",
            labels=["tabby cat", "sofa"], camera="Canon EOS R5", taken_at=taken(2024, 5, 1, 12), latitude=48.8584,
            longitude=2.2945, user_tags=["best", "Holiday"], rating=5, metadata=json.dumps(exif), title="A cat",
            extraction_status="ok", content_hash="aa", perceptual_hash=0b1111, image_width=60, image_height=40,
        ),
        an_object(
            "2024/copy.jpg", size=5_000_000, content_type="image/jpeg", labels=["tabby cat"], camera="Canon EOS R5",
            taken_at=taken(2024, 5, 1, 12), latitude=48.86, longitude=2.35, content_hash="aa",
            perceptual_hash=0b1101, extraction_status="ok", rating=3, tags=[("project", "birds")],
        ),
        an_object(
            "2023/heron.png", size=2_000_000, content_type="application/octet-stream", detected_type="image/png",
            labels=["heron", "caterpillar"], camera="NIKON Z 7", taken_at=taken(2023, 12, 31, 23, 59), latitude=-17.0,
            longitude=179.0, metadata=json.dumps(other), note="by the lake", author="Ann", language="fr",
            perceptual_hash=-1, extraction_status="ok", last_modified=at(60),
        ),
        an_object("2023/fiji.png", size=7, latitude=-17.5, longitude=-179.5, detected_type="image/png", etag=MD5),
        an_object("notes.TXT", size=7, content_type="text/plain; charset=utf-8", etag=MD5, user_tags=["work"],
                  extraction_status="failed", user_metadata=[("by", "Bob")]),
        an_object("empty", size=0, etag=MD5, last_modified=None),
        an_object("parts", size=7, etag=f"{MD5}-2", extraction_status="pending"),
        an_object(ODD, size=1, title="ÉTÉ"),
        an_object("gone.jpg", labels=["tabby cat"], is_latest=False, is_deleted=True),
        an_object("old.jpg", labels=["tabby cat"], is_latest=False, version_id="v1"),
        an_object("marker", labels=["tabby cat"], is_delete_marker=True),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> Content:
    made = Content.at(tmp_path_factory.mktemp("search"))
    rows = photos()
    made.add_objects(rows[:3])
    made.add_objects(rows[3:])
    made.add_objects([an_object("2024/cat.jpg", bucket="other", labels=["Dog"], size=3, content_hash="bb")])
    return made


@pytest.fixture
def home(content) -> Path:
    return Path(content.settings.model.home)


class Cli:
    def __init__(self, home: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        self.home, self._capfd = home, capfdbinary

    def raw(self, *args: str) -> tuple[int, bytes, str]:
        self._capfd.readouterr()
        code = run_command("content", "content", [*args, "--set", f"home={self.home}"])
        out, errors = self._capfd.readouterr()
        return code, out, errors.decode()

    def ok(self, *args: str) -> str:
        code, out, errors = self.raw(*args)
        assert code == 0, errors
        return out.decode()

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--output", "json"))

    def keys(self, *args: str) -> list[str]:
        return [row["key"] for row in self.json("search", *args)["objects"]]

    def fails(self, *args: str, code: int, says: str) -> str:
        got, out, errors = self.raw(*args)
        assert got == code, errors
        assert "error: " in errors and "Try: " in errors and "Traceback" not in errors
        assert says in errors and not out
        return errors


@pytest.fixture
def cli(home, capfdbinary) -> Iterator[Cli]:
    yield Cli(home, capfdbinary)
    structlog.reset_defaults()  # a command has told it to write to what was standard error then


CAT, COPY, HERON, FIJI = "2024/cat.jpg", "2024/copy.jpg", "2023/heron.png", "2023/fiji.png"


# -- search ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], [FIJI, HERON, CAT, COPY, "empty", "notes.TXT", ODD, "parts"]),
        (["--label", "cat"], [CAT, COPY]),
        (["--label", "CAT", "--label", "sofa"], [CAT]),
        (["--label", "sofa", "--label", "heron", "--any-label"], [HERON, CAT]),
        (["--label", "*cat*"], [HERON, CAT, COPY]),
        (["--label", "dog"], []),
        (["--camera", "canon eos"], [CAT, COPY]),
        (["--taken", "2024"], [CAT, COPY]),
        (["--taken", "2023-12-31"], [HERON]),
        (["--taken", "..2023"], [HERON]),
        (["--taken", "2024-05-01T12:00..2024-05-01T12:00"], [CAT, COPY]),
        (["--box", "40,-5,55,10"], [CAT, COPY]),
        (["--box", "-20,170,-10,-170"], [FIJI, HERON]),
        (["--near", "48.8584,2.2945", "--radius", "1km"], [CAT]),
        (["--near", "48.8584,2.2945", "--radius", "10km"], [CAT, COPY]),
        (["--near", "-17,-180"], [FIJI, HERON, COPY, CAT]),
        (["--near", "-17.2,180", "--radius", "200km", "--sort", "key"], [FIJI, HERON]),
        (["--tag", "holiday"], [CAT]),
        (["--tag", "holiday", "--tag", "best"], [CAT]),
        (["--tag", "project=birds"], [COPY]),
        (["--tag", "project=bees"], []),
        (["--tag", "project"], []),
        (["--rating", "4.."], [CAT]),
        (["--rating", "..4"], [COPY]),
        (["--status", "failed"], ["notes.TXT"]),
        (["--type", "image/*"], [FIJI, HERON, CAT, COPY]),
        (["--type", "image/png"], [FIJI, HERON]),
        (["--type", "application/octet-stream"], []),
        (["--type", "TEXT/plain"], ["notes.TXT"]),
        (["--min-size", "2MB", "--max-size", "2MB"], [HERON]),
        (["--max-size", "1"], ["empty", ODD]),
        (["--path", "*.png"], [FIJI, HERON]),
        (["--path", "2024/*"], [CAT, COPY]),
        (["--path", "**/*red*"], [ODD]),
        (["--text", "quai nord"], [CAT]),
        (["--text", "résumé"], [HERON]),
        (["--text", "été"], [ODD]),
        (["--text", "heron lake png"], [HERON]),
        (["--text", "cat quai"], [CAT]),
        (["--text", "Model"], []),
        (["--text", "ann"], [HERON]),
        (["--exif", "ISOSpeedRatings>=400"], [CAT]),
        (["--exif", "Model~z"], [HERON]),
        (["--field", "$.exif.Model=EOS R5", "--field", "rating>4"], [CAT]),
        (["--field", "exif.Model!=EOS R5"], [HERON]),
        (["--field", "exif.Model"], [HERON, CAT]),
        (["--field", "author=Ann"], [HERON]),
        (["--field", "language"], [HERON]),
        (["--field", "user_metadata.by=Bob"], ["notes.TXT"]),
        (["--field", "last_modified>2026-01-31T12:00:00Z"], [HERON]),
        (["--similar", CAT, "--distance", "0"], [CAT]),
        (["--similar", CAT], [CAT, COPY]),
        (["--similar", CAT, "--distance", "64"], [CAT, COPY, HERON]),
        (["--similar", CAT, "--distance", "64", "--label", "heron"], [HERON]),
        (["--sort", "size"], [CAT, COPY, HERON, FIJI, "notes.TXT", "parts", ODD, "empty"]),
        (["--sort", "taken", "--type", "image/*"], [CAT, COPY, HERON, FIJI]),
        (["--sort", "rating", "--label", "*"], [CAT, COPY, HERON]),
        (["--sort", "modified", "--max-size", "7"], [FIJI, "notes.TXT", ODD, "parts", "empty"]),
        (["--label", "cat", "--taken", "2024", "--camera", "nikon"], []),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_search_finds(cli, options, found):
    assert cli.keys("photos", *options) == found


def test_all_buckets_and_the_columns_of_a_hit(cli):
    page = cli.json("search", "--path", "**/cat.jpg")
    assert [(row["bucket"], row["key"]) for row in page["objects"]] == [("other", CAT), ("photos", CAT)]
    assert page["after"] is None
    cat = page["objects"][1]
    assert set(cat) == set(content_search.HIT_COLUMNS)
    assert cat["taken_at"] == "2024-05-01T12:00:00" and cat["labels"] == ["tabby cat", "sofa"]
    near = cli.json("search", "photos", "--near", "48.8584,2.2945", "--similar", CAT, "--columns", "title")["objects"]
    assert near[0] == {
        "bucket": "photos", "key": CAT, "version_id": "", "title": "A cat", "distance_bits": 0, "distance_km": 0.0,
    }  # fmt: skip
    assert near[1]["distance_bits"] == 1 and 3.9 < near[1]["distance_km"] < 4.2


def test_text_for_people(cli):
    out = cli.ok("search", "photos", "--label", "cat")
    assert out.splitlines()[0].split() == ["key", "size", "taken", "camera", "labels", "tags", "rating", "title"]
    assert "tabby cat, sofa" in out and "4.8 MiB" in out
    assert cli.ok("search", "photos", "--camera", "none such") == "(nothing found)\n"
    odd = cli.ok("search", "--field", "title", "--columns", "title,metadata")
    assert "\x1b" not in odd and "\\x1b[31mred" in odd


def test_pages_follow_each_other_in_every_order(cli):
    for sort in ("key", "size", "modified", "taken", "rating"):
        whole = cli.keys("photos", "--sort", sort)
        seen, after = [], []
        while True:
            page = cli.json("search", "photos", "--sort", sort, "--limit", "3", *after)
            seen += [row["key"] for row in page["objects"]]
            if page["after"] is None:
                break
            after = ["--after", page["after"]]
        assert seen == whole, sort
    first = cli.json("search", "photos", "--near", "0,0", "--limit", "1")
    rest = cli.keys("photos", "--near", "0,0", "--after", first["after"])
    assert [first["objects"][0]["key"], *rest] == cli.keys("photos", "--near", "0,0")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--taken", "May"], "'May' is no time"),
        (["--near", "48"], "'48' is no place"),
        (["--radius", "5km"], "a radius requires a point"),
        (["--box", "1,2,3"], "is no place"),
        (["--rating", "9"], "is not a rating"),
        (["--min-size", "big"], "is not a size"),
        (["--field", "Model=x"], "there is no column 'Model'"),
        (["--field", "rating=high"], "column 'rating' has values of type int32"),
        (["--exif", "$.a[?"], "no JSONPath"),
        (["--sort", "distance"], "nothing to measure a distance from"),
        (["--distance", "3"], "--distance requires a picture"),
        (["--columns", "nope"], "there is no column 'nope'"),
        (["--columns", "frazil_order"], "there is no column"),
        (["--after", "x"], "'after' is not the end of a page"),
        (["--label", " "], "the label is empty"),
        (["--path", "[z-a]"], "no pattern of keys"),
    ],
    ids=str,
)
def test_searches_that_make_no_sense(cli, args, says):
    cli.fails("search", "photos", *args, code=2, says=says)


def test_unknown_places_and_pictures(cli, tmp_path):
    assert "Try: frazil content list photos" in cli.fails("search", "fotos", code=10, says="nothing is known of bucket")
    cli.fails("search", "photos", "--similar", "nope.jpg", code=10, says="there is no picture")
    cli.fails("search", "photos", "--similar", "parts", code=10, says="its extraction is pending")
    cli.fails("facets", "fotos", "--by", "camera", code=10, says="nothing is known of bucket")
    cli.fails("duplicates", "fotos", code=10, says="nothing is known of bucket")
    cli.fails("export", "fotos", str(tmp_path / "x.csv"), code=10, says="nothing is known of bucket")
    assert not list(tmp_path.iterdir())
    cli.home = tmp_path / "empty"
    cli.fails("search", code=10, says="table content.objects does not exist yet")


def test_a_picture_on_this_machine(content, cli, tmp_path):
    from PIL import Image

    from frazil.extract.images.perceptual_hash import perceptual_hash

    picture = Image.radial_gradient("L").convert("RGB")
    file = tmp_path / "here.png"
    picture.save(file)
    number = int(perceptual_hash(picture), 16)
    number -= 1 << 64 if number >= 1 << 63 else 0
    content.add_objects([an_object("ring", bucket="rings", perceptual_hash=number ^ 0b101)])
    found = cli.json("search", "rings", "--similar", str(file))["objects"]
    assert [(row["key"], row["distance_bits"]) for row in found] == [("ring", 2)]
    assert hash_of_object(content.tables, "rings", "ring") == number ^ 0b101
    (tmp_path / "text.jpg").write_text("no picture")
    cli.fails(
        "search", "rings", "--similar", str(tmp_path / "text.jpg"), code=2, says="no picture that can be compared"
    )


# -- what the table looks like underneath ------------------------------------------------------------------------------


def many(tmp_path: Path, count: int = 3000) -> Content:
    """Several files of many row groups; every tenth object has a label."""
    made = Content.at(tmp_path)
    for start in range(0, count, 1000):
        rows = [
            an_object(f"{n:05d}", size=n, labels=["other", "one"] if n % 10 else ["ten"], metadata=f'{{"n": {n}}}')
            for n in range(start, start + 1000)
        ]
        made.add_objects(rows)
    return made


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "_BLOCK_ROWS", 150)


def with_row_groups(content: Content, rows: int) -> None:
    table = content.store.load(objects_name(content.settings))
    with table.transaction() as transaction:
        transaction.set_properties({"write.parquet.row-group-limit": str(rows)})


def test_blocks_and_row_groups_do_not_show(tmp_path, small_blocks):
    made = Content.at(tmp_path)
    made.add_objects([an_object("first", size=10_000)])
    with_row_groups(made, 100)
    many(tmp_path)
    cache = ByteCache()
    for _ in range(2):
        page = find(made.tables, parse_search(label=["ten"]), sort="size", limit=5, cache=cache)
        assert [row["size"] for row in page.rows] == [2990, 2980, 2970, 2960, 2950]
        assert [row["key"] for row in find(made.tables, parse_search(label=["ten"]), limit=3, cache=cache).rows] == [
            "00000", "00010", "00020",
        ]  # fmt: skip
        found = find(
            made.tables, parse_search(field=["$.n>=2995", "size<2998"]), columns=["metadata"], cache=cache
        ).rows
        assert [row["metadata"] for row in found] == [f'{{"n": {n}}}' for n in (2995, 2996, 2997)]
    assert cache.size > 0
    assert facet(made.tables, parse_search(), "label") == [
        {"value": "one", "objects": 2700, "bytes": sum(n for n in range(3000) if n % 10)},
        {"value": "other", "objects": 2700, "bytes": sum(n for n in range(3000) if n % 10)},
        {"value": "ten", "objects": 300, "bytes": sum(range(0, 3000, 10))},
        {"value": None, "objects": 1, "bytes": 10_000},
    ]


def delete_rows(content: Content, *keys: str) -> None:
    """As the sink does: position deletes beside the data."""
    table = content.store.load(content.tables.objects)
    places: dict[str, Any] = {}
    files, positions = [], []
    for task in table.scan().plan_files():
        path = task.file.file_path
        places[path] = (task.file.spec_id, task.file.partition)
        found = pq.read_table(path.removeprefix("file://"), columns=["key"])["key"]
        for place in pc.indices_nonzero(pc.is_in(found, pa.array(keys))).to_pylist():
            files.append(path)
            positions.append(place)
    made = write_position_deletes(WriteTarget.of(table), "d", pa.array(files), pa.array(positions, pa.int64()), places)
    commit_append(
        content.store, table, made, expected=None, reached=at_offset(1), on=table.metadata.current_snapshot_id
    )


def test_deleted_rows_are_not_found(tmp_path, small_blocks):
    made, cache = many(tmp_path), ByteCache()
    before = find(made.tables, parse_search(label=["ten"]), limit=1000, cache=cache).rows
    assert len(before) == 300
    delete_rows(made, "00010", "01000", "02990")
    for again in (cache, None):
        found = find(made.tables, parse_search(label=["ten"]), limit=1000, cache=again).rows
        assert [row["key"] for row in found] == [
            row["key"] for row in before if row["key"] not in ("00010", "01000", "02990")
        ]
    assert facet(made.tables, parse_search(label=["ten"]), "label")[0]["objects"] == 297


def test_a_table_from_before_has_nothing_inside(tmp_path):
    made = Content.at(tmp_path)
    new = {field.name for field in (*EXTRACTED, *USERS)} - {"labels", "metadata", "image_width", "image_height"}
    old = pa.schema([field for field in OBJECTS if field.name not in new])
    table = ensure_table(made.store, made.tables.objects, old, partition=["bucket"], sort=["bucket", "key"])
    row = {name: value for name, value in an_object("a.jpg", labels=["cat"], size=4).items() if name in old.names}
    table.append(pa.Table.from_pylist([row, row | {"key": "b.jpg", "labels": None}], schema=old))
    assert [r["key"] for r in find(made.tables, parse_search(label=["cat"])).rows] == ["a.jpg"]
    assert len(find(made.tables, parse_search(), sort="taken").rows) == 2
    for nothing in (
        {"camera": "x"}, {"taken": "2024"}, {"near": "0,0"}, {"tag": ["x"]}, {"rating": "1.."}, {"status": "ok"},
        {"box": "0,0,1,1"}, {"media_type": "image/*"}, {"similar": Similar(0, 64)},
    ):  # fmt: skip
        assert find(made.tables, parse_search(**nothing)).rows == [], nothing
    assert [r["key"] for r in find(made.tables, parse_search(text="b.jpg")).rows] == ["b.jpg"]
    for by in NAMES:
        assert sum(group["objects"] for group in facet(made.tables, parse_search(), by)) >= 2
    assert duplicates(made.tables, parse_search()).groups == []
    assert largest(made.tables, parse_search(), 1)[0]["key"] == "a.jpg"


def test_columns_that_were_added_widened_and_renamed_are_searched(content, tmp_path):
    made = Content.at(tmp_path)
    made.add_objects([an_object("old", image_width=5)])
    cache = ByteCache()
    assert find(made.tables, parse_search(field=["image_width<4"]), cache=cache).rows == []
    table = made.store.load(made.tables.objects)
    with table.update_schema() as update:
        update.add_column("iso", IntegerType())
        update.rename_column("camera", "apparatus")
    with table.update_schema() as update:
        update.update_column("image_width", LongType())
    assert find(made.tables, parse_search(field=["iso>1"])).rows == []
    assert [r["key"] for r in find(made.tables, parse_search(field=["image_width=5"])).rows] == ["old"]
    wide = find(made.tables, parse_search(field=["image_width<3000000000"]), columns=["image_width"], cache=cache).rows
    assert [r["image_width"] for r in wide] == [5], "what was cache before is of the old type"
    assert find(made.tables, parse_search(camera="x")).rows == []
    assert facets(made.tables, parse_search(), "iso").groups == [{"value": None, "objects": 1, "bytes": 10}]


def test_files_behind_the_page_are_not_read(tmp_path, monkeypatch):
    made = many(tmp_path)
    opened: list[int] = []
    whole = blocks.BlockScan.of
    monkeypatch.setattr(blocks.BlockScan, "of", lambda self, number: (opened.append(number), whole(self, number))[1])
    find(made.tables, parse_search(label=["ten"]), limit=5)
    assert len(set(opened)) == 1
    opened.clear()
    find(made.tables, parse_search(path="02/*"), limit=5)
    assert opened == []


# -- facets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "values"),
    [
        ("camera", {"Canon EOS R5": 2, "NIKON Z 7": 1, None: 5}),
        ("label", {"tabby cat": 2, "sofa": 1, "heron": 1, "caterpillar": 1, None: 5}),
        ("year", {2024: 2, 2023: 1, None: 5}),
        ("month", {"2024-05": 2, "2023-12": 1, None: 5}),
        ("type", {"image/jpeg": 2, "image/png": 2, "text/plain": 1, None: 3}),
        ("tag", {"best": 1, "Holiday": 1, "work": 1, None: 6}),
        ("language", {"fr": 1, None: 7}),
        ("author", {"Ann": 1, None: 7}),
        ("place", {"49,2": 2, "-17,179": 1, "-18,180": 1, None: 4}),
        ("rating", {5: 1, 3: 1, None: 6}),
        ("status", {"ok": 3, "failed": 1, "pending": 1, None: 3}),
        ("extension", {"jpg": 3, "png": 2, "txt": 1, None: 2}),
        ("storage_class", {"STANDARD": 8}),
        ("image_width", {60: 1, None: 7}),
        ("taken_at", {"2024-05-01T12:00:00": 2, "2023-12-31T23:59:00": 1, None: 5}),
        ("is_latest", {True: 8}),
    ],
)
def test_facets(cli, by, values):
    found = cli.json("facets", "photos", "--by", by)
    assert {group["value"]: group["objects"] for group in found["groups"]} == values
    assert found["by"] == by and found["more"] is False
    counts = [group["objects"] for group in found["groups"]]
    assert counts == sorted(counts, reverse=True)


def test_facets_of_a_search(cli):
    found = cli.json("facets", "photos", "--by", "label", "--taken", "2024", "--limit", "1")
    assert found == {"by": "label", "groups": [{"value": "tabby cat", "objects": 2, "bytes": 10_000_000}], "more": True}
    shown = cli.ok("facets", "photos", "--by", "camera", "--label", "cat")
    assert shown.split() == ["camera", "objects", "bytes", "Canon", "EOS", "R5", "2", "9.5", "MiB"]
    assert "heron" in cli.fails("facets", "photos", "--by", "heron", code=2, says="cannot be grouped by")
    cli.fails("facets", "photos", "--by", "tags", code=2, says="has names and values")
    cli.fails("facets", "photos", "--by", "frazil_order", code=2, says="cannot be grouped by")
    assert cli.json("facets", "photos", "--by", "camera", "--label", "nothing")["groups"] == []


# -- duplicates --------------------------------------------------------------------------------------------------------


def test_duplicates_by_content_and_by_md5(cli):
    found = cli.json("duplicates", "photos")
    assert [(g["by"], g["size"], g["objects"], g["wasted_bytes"]) for g in found["groups"]] == [
        ("hash", 5_000_000, 2, 5_000_000),
        ("etag", 7, 2, 7),
    ]
    assert [m["key"] for m in found["groups"][0]["members"]] == [CAT, COPY]
    assert [m["key"] for m in found["groups"][1]["members"]] == [FIJI, "notes.TXT"]
    assert {n: found[n] for n in ("count", "objects", "wasted_bytes", "more")} == {
        "count": 2, "objects": 2, "wasted_bytes": 5_000_007, "more": False,
    }  # fmt: skip
    one = cli.json("duplicates", "photos", "--limit", "1")
    assert len(one["groups"]) == 1 and one["more"] and one["count"] == 2
    assert cli.json("duplicates", "photos", "--path", "2024/cat*")["groups"] == []
    code, out, errors = cli.raw("duplicates", "photos")
    assert code == 0 and out.split()[:3] == [b"group", b"size", b"key"]
    assert "2 groups, 2 objects more than needed: 4.8 MiB wasted" in errors


def test_pictures_that_look_alike(cli):
    found = cli.json("duplicates", "photos", "--similar")
    assert [[m["key"] for m in g["members"]] for g in found["groups"]] == [[CAT, COPY]]
    assert found["groups"][0]["by"] == "similar" and found["wasted_bytes"] == 5_000_000
    assert cli.json("duplicates", "photos", "--similar", "--distance", "0")["groups"] == []
    all_of_them = cli.json("duplicates", "photos", "--similar", "--distance", "64")
    assert all_of_them["groups"][0]["objects"] == 3 and all_of_them["wasted_bytes"] == 7_000_000
    cli.fails("duplicates", "photos", "--distance", "3", code=2, says="about pictures that look alike")


# -- export ------------------------------------------------------------------------------------------------------------


def columns_of(content: Content) -> list[str]:
    return [name for name in OBJECTS.names if not name.startswith("frazil_")]


@pytest.mark.parametrize("form", ["csv", "ndjson", "parquet"])
def test_export(cli, content, tmp_path, form):
    file = tmp_path / f"out.{form}"
    told = cli.json("export", "photos", str(file))
    assert told == {"file": str(file), "format": form, "objects": 8}
    if form == "parquet":
        table = pq.read_table(file)
        assert table.column_names == columns_of(content)
        rows = {row["key"]: row for row in table.to_pylist()}
        assert rows[CAT]["labels"] == ["tabby cat", "sofa"]
    elif form == "ndjson":
        rows = {row["key"]: row for row in map(json.loads, file.read_text().splitlines())}
        assert list(rows[CAT]) == columns_of(content)
        assert rows[CAT]["labels"] == ["tabby cat", "sofa"] and rows[COPY]["tags"] == {"project": "birds"}
        assert rows[CAT]["last_modified"] == "2026-01-31T12:00:00+00:00" and rows[CAT]["rating"] == 5
    else:
        listed = list(csv.DictReader(io.StringIO(file.read_text(), newline="")))
        rows = {row["key"]: row for row in listed}
        assert list(listed[0]) == columns_of(content)
        assert json.loads(rows[CAT]["labels"]) == ["tabby cat", "sofa"]
        assert rows[CAT]["is_latest"] == "true" and rows[FIJI]["title"] == ""
    assert set(rows) == {FIJI, HERON, CAT, COPY, "empty", "notes.TXT", ODD, "parts"}
    assert rows[ODD]["title"] == "ÉTÉ"


@pytest.mark.parametrize("form", ["csv", "ndjson", "parquet"])
def test_export_to_standard_output(cli, form):
    code, out, errors = cli.raw("export", "photos", "-", "--format", form, "--label", "cat")
    assert code == 0 and "2 objects written" in errors
    if form == "parquet":
        assert pq.read_table(io.BytesIO(out)).num_rows == 2
    else:
        assert out.decode().count("\n") == (3 if form == "csv" else 2)


def test_an_export_replaces_nothing_unless_it_is_told_to(cli, tmp_path):
    file = tmp_path / "out.csv"
    file.write_text("mine")
    cli.fails("export", str(file), code=2, says="is there already")
    assert file.read_text() == "mine"
    cli.fails("export", "photos", str(file), "--force", "--field", "rating=x", code=2, says="int32")
    assert file.read_text() == "mine" and [p.name for p in tmp_path.iterdir()] == ["out.csv"]
    cli.ok("export", "photos", str(file), "--force", "--label", "cat")
    assert len(file.read_text().splitlines()) == 3
    cli.fails("export", str(tmp_path / "out.txt"), code=2, says="does not tell the format")
    cli.fails("export", str(tmp_path / "no" / "out.csv"), code=12, says="cannot write")
    cli.fails("export", "a", "b", "c.csv", code=2, says="one name too many")


def test_a_file_that_goes_away_ends_an_export_and_leaves_nothing(cli, tmp_path):
    cli.home = tmp_path / "home"
    made = many(cli.home)
    tasks = list(made.store.load(made.tables.objects).scan().plan_files())
    Path(tasks[-1].file.file_path.removeprefix("file://")).unlink()
    out = tmp_path / "out"
    out.mkdir()
    cli.fails("export", str(out / "all.csv"), code=11, says="went away while it was read")
    assert not list(out.iterdir())
    cli.fails("facets", "--by", "label", code=13, says="is missing although its table needs it")


def test_a_formula_stays_as_it_is(cli, content, tmp_path):
    content.add_objects([an_object("=1+1", bucket="formulas", title="=HYPERLINK(0)")])
    cli.ok("export", "formulas", str(tmp_path / "f.csv"))
    assert "=HYPERLINK(0)" in (tmp_path / "f.csv").read_text()


# -- open --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def opener(tmp_path, monkeypatch) -> Path:
    """A program that notes what it shall open."""
    noted = tmp_path / "opened"
    program = tmp_path / "bin" / "xdg-open"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ncase "$1" in *bad*) exit 3;; esac\necho "$1" >> {noted}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return noted


def test_files_of_a_folder_are_opened(cli, content, tmp_path, opener, monkeypatch):
    folder = tmp_path / "pictures"
    folder.mkdir()
    names = [f"{n:02d}.jpg" for n in range(25)]
    for name in [*names, "bad.jpg"]:
        (folder / name).touch()
    bucket = f"file://{folder}"
    content.add_objects([an_object(name, bucket=bucket) for name in [*names, "lost.jpg", "bad.jpg", "../x.jpg"]])
    cli.ok("search", str(folder), "--path", "0[12].jpg", "--open")
    assert opener.read_text().splitlines() == [str(folder / "01.jpg"), str(folder / "02.jpg")]
    for args, code, says in (
        ([str(folder)], 2, "at most 20"),
        ([str(folder), "--path", "lost.jpg"], 10, "no longer exists"),
        ([str(folder), "--path", "bad.jpg"], 1, "could not be opened"),
        ([str(folder), "--path", "../*"], 2, "is not a file inside"),
        (["photos", "--label", "sofa"], 2, "only local files can be opened"),
    ):
        got, _, errors = cli.raw("search", *args, "--open")
        assert got == code and says in errors and "Try: " in errors, errors
    assert len(opener.read_text().splitlines()) == 2
    monkeypatch.setenv("PATH", "/nowhere")
    got, _, errors = cli.raw("search", str(folder), "--path", "01.jpg", "--open")
    assert got == 1 and "no program to open files" in errors


# -- for others to call ------------------------------------------------------------------------------------------------


def test_the_functions_that_a_summary_uses(content):
    only = parse_search(bucket="photos")
    assert facet(content.tables, only, "camera", 1) == [{"value": None, "objects": 5, "bytes": 22}]
    assert [row["key"] for row in largest(content.tables, only, 2)] == [CAT, COPY]
    assert duplicates(content.tables, only, 1).wasted_bytes == 5_000_007
    with pytest.raises(UsageError, match="cannot be grouped"):
        facet(content.tables, only, "nope")
    with pytest.raises(NotFoundError, match="nothing is known"):
        largest(content.tables, parse_search(bucket="nope"), 2)


def test_many_ask_at_once_and_see_the_same(tmp_path, small_blocks):
    made, cache = many(tmp_path, 2000), ByteCache(200_000)
    searches = [
        parse_search(label=["ten"]),
        parse_search(field=["$.n>=1990"]),
        parse_search(text="0199"),
        parse_search(field=["$.n~99"]),
    ]
    alone = [find(made.tables, search, limit=1000).rows for search in searches]
    assert [len(rows) for rows in alone] == [200, 10, 11, 38]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            together = list(pool.map(lambda search: find(made.tables, search, limit=1000, cache=cache).rows, searches))
            assert together == alone
    assert 0 < cache.size <= 200_000


def test_strange_metadata_harms_nobody_else(tmp_path):
    made = Content.at(tmp_path)
    strange = ["{", "null", "[]", '"x"', '{"exif": null}', '{"exif": []}', '{"text": 5}', '{"ocr": {"text": {}}}']
    large = json.dumps({"exif": {"Model": "x" * 10_000_000}})
    fine = json.dumps({"exif": {"Model": "fine"}, "ocr": {"text": "a\u0000heron \U0001f600"}}, ensure_ascii=False)
    rows = [an_object(f"{n:02d}", metadata=text) for n, text in enumerate([*strange, large, fine])]
    made.add_objects([*rows, an_object("nan", latitude=float("nan"), longitude=float("nan"))])
    assert [r["key"] for r in find(made.tables, parse_search(field=["exif.Model=fine"])).rows] == ["09"]
    assert [r["key"] for r in find(made.tables, parse_search(field=["exif.Model~xxx"])).rows] == ["08"]
    assert [r["key"] for r in find(made.tables, parse_search(field=["$..Model"])).rows] == ["08", "09"]
    assert [r["key"] for r in find(made.tables, parse_search(text="HERON \U0001f600")).rows] == ["09"]
    assert find(made.tables, parse_search(near="0,0", radius="20000km")).rows == []
    assert find(made.tables, parse_search(near="0,0")).rows == []
    assert facet(made.tables, parse_search(), "place") == [{"value": None, "objects": 11, "bytes": 110}]
    with (tmp_path / "out.ndjson").open("wb") as file:
        assert export(made.tables, parse_search(), file, "ndjson") == 11
    written = {row["key"]: row for row in map(json.loads, (tmp_path / "out.ndjson").read_text().splitlines())}
    assert written["08"]["metadata"] == large and written["nan"]["latitude"] is None
