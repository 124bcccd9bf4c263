"""The demo, and the commands it tells a person to try next."""

from __future__ import annotations

import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import OFFLINE
from tests.e2e.traps import sprung_traps

pytestmark = pytest.mark.timeout(600)


@pytest.mark.long("runs the whole demo, for all files that look at it")
def test_the_demo_shows_each_step_with_its_time_and_what_to_try_next(demo_shell):
    shown = (demo_shell.folder.parent.parent / "demo.out").read_text()
    for words in (
        "Chapter 1", "start Spark", "the schema evolves", "time travel", "PyIceberg", "DuckDB",
        "Chapter 2", "the broker is killed", "replay the topic", "Chapter 3", "frazil upkeep run",
        "Chapter 4", "frazil content scan", "in random order", "frazil content reconcile --apply",
        "Chapter 5", "extracts metadata", "add a column to the live table",
        "Chapter 6", "frazil docs migrate --from sqlite --to iceberg",
        "Chapter 7", "disaster: drop the table", "frazil backup restore tuesday",
        "Chapter 8", "a partial replication", "frazil replica failover standby.orders --yes", "Try next",
    ):  # fmt: skip
        assert words in shown
    assert "ms" in shown and " s)" in shown
    assert shown.count("start Spark") == 1, "one session serves all chapters"


def test_no_process_of_the_demo_runs_code_from_the_current_folder(demo_shell):
    """The demo starts every kind of process: broker, JVM, Spark's Python workers, and the workers of extraction."""
    assert sprung_traps(demo_shell.folder.parent) == ""


def test_offline_means_offline():
    """The fixture has run the demo with the network cut; here is the proof that it was."""
    reach = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    done = subprocess.run(
        [sys.executable, OFFLINE, sys.executable, "-c", reach], capture_output=True, text=True, check=False
    )
    assert "Network is unreachable" in done.stderr


def test_the_demo_leaves_nothing_running(demo_shell):
    group = (demo_shell.folder.parent.parent / "demo.pid").read_text()
    found = subprocess.run(["pgrep", "-g", group, "-r", "S,R,D", "-a"], capture_output=True, text=True, check=False)
    assert found.stdout == ""


def test_what_the_demo_made_can_be_looked_at(demo_shell):
    tables = {
        "content": ["journal", "objects"],
        "demo": ["photos", "shots"],
        "document_archive": ["document_history", "document_metadata"],
        "frazil": ["replica_runs"],
        "rescued": ["bookings"],
        "standby": ["orders"],
        "topics": ["camera_events", "dead_letters"],
    }
    found = demo_shell.json("table", "list")
    assert found == [{"namespace": space, "table": name} for space, names in tables.items() for name in names]
    snapshots = demo_shell.json("table", "snapshots", "demo.photos")
    assert [s["operation"] for s in snapshots] == ["append", "append", "overwrite"]
    assert snapshots[-1]["total_rows"] == 4500 and snapshots[-1]["refs"] == ["main"]
    history = demo_shell.json("table", "history", "demo.photos")
    assert [h["snapshot_id"] for h in history] == [s["snapshot_id"] for s in snapshots]
    files = demo_shell.json("table", "files", "demo.photos")
    assert sum(f["rows"] for f in files) == 4500 and {f["content"] for f in files} == {"data"}
    first = demo_shell.json("table", "files", "demo.photos", "--snapshot", str(snapshots[0]["snapshot_id"]))
    assert sum(f["rows"] for f in first) == 5000


def test_the_worn_out_table_of_the_demo_is_small_again(demo_shell):
    shown = (demo_shell.folder.parent.parent / "demo.out").read_text()
    rows = [line.split() for line in shown.splitlines()]
    seen = {row[0]: row[1:7] for row in rows if row[:2] in (["before", "6000"], ["after", "6000"])}
    columns = ("rows", "files", "manifests", "snapshots", "metadata", "disk")
    before, after = (
        dict(zip(columns, (int(cell.replace(",", "")) for cell in seen[when]), strict=True))
        for when in ("before", "after")
    )
    assert (before["rows"], before["files"], before["snapshots"]) == (6000, 300, 300)
    assert (after["rows"], after["files"], after["snapshots"]) == (6000, 1, 1)
    assert after["metadata"] < before["metadata"] / 10 and after["disk"] < before["disk"] * 0.8
    health = demo_shell.json("table", "health", "demo.shots")
    assert (health["rows"], health["files"]["count"], health["snapshots"]["count"]) == (6000, 1, 1)
    assert health["metadata"]["json_bytes"] == after["metadata"]
    assert demo_shell.json("table", "verify", "demo.shots")["sound"] is True


def test_the_folder_of_the_demo_is_in_the_table_and_can_be_asked_for(demo_shell):
    pictures = demo_shell.folder / "pictures"
    there = {path.relative_to(pictures).as_posix(): path.stat().st_size for path in pictures.rglob("*.jpg")}
    listed = demo_shell.json("content", "list", str(pictures), "--limit", "100000")
    assert {row["key"]: row["size"] for row in listed} == there
    where = "NOT is_deleted AND bucket LIKE '%/pictures'"
    (total,) = demo_shell.json("sql", f"SELECT count(*) AS n FROM content.objects WHERE {where}")
    assert total == {"n": len(there)}


def test_the_photos_of_the_demo_are_found_by_what_is_inside(demo_shell):
    photos = demo_shell.folder / "photos"
    found = demo_shell.json("content", "search", str(photos), "--near", "64.1,-21.9", "--radius", "20km")["objects"]
    albums = {row["key"].split("/")[1] for row in found if not row["key"].startswith("copies/")}
    assert albums == {"reykjavik"}
    (filled,) = demo_shell.json("sql", "SELECT count(iso) AS n FROM content.objects WHERE bucket LIKE '%/photos'")
    assert filled == {"n": 120}


@pytest.mark.long("reads each store of the demo by its commands, one process each")
def test_the_documents_of_the_demo_are_in_both_stores_with_their_past(demo_shell):
    iceberg = {"DATABASE_URL": "iceberg"}
    assert demo_shell.json("docs", "stats") == demo_shell.json("docs", "stats", env=iceberg)
    past = demo_shell.json("docs", "history", "contract-00042", env=iceberg)
    assert [revision["restore_status"] for revision in past] == ["none", "restored"]
    assert demo_shell.json("docs", "history", "contract-00042") == past
    counted = demo_shell.json("sql", "SELECT count(*) AS n, max(revision) AS r FROM document_archive.document_metadata")
    assert counted == [{"n": 10_000, "r": 2}]
    wanted = ("docs", "list", "--start-date", "2025-01-01", "--storage-tier", "archive", "--limit", "20")
    by_table = demo_shell.json(*wanted, "--via", "table", "--explain", env=iceberg)
    assert by_table["documents"] == demo_shell.json(*wanted, env=iceberg)["documents"]
    assert by_table["explanation"]["files_skipped"] > 200
    assert demo_shell.json("docs", "verify", env=iceberg)["sound"] is True


def test_the_topic_of_the_demo_lost_and_doubled_nothing_and_can_be_replayed(demo_shell):
    messages = demo_shell.json("topic", "replay", "camera_events", "--from", "start")
    assert [m["offset"] for m in messages] == list(range(21_000))
    assert len({m["payload"] for m in messages}) == 21_000
    assert demo_shell.json("sql", "SELECT count(*) AS n FROM topics.camera_events") == [{"n": 20_000}]
    verified = demo_shell.json("topic", "verify", "camera_events")
    assert verified["sound"] is True and verified["findings"] == []


def test_show_tells_columns_partitioning_and_size(demo_shell):
    shown = demo_shell.json("table", "show", "demo.photos")
    assert [c["name"] for c in shown["columns"]] == ["id", "path", "camera", "size_bytes", "taken_at", "labels"]
    assert shown["partitioning"] == ["month(taken_at)"]
    assert shown["rows"] == 4500 and shown["format_version"] == 2 and shown["bytes"] > 0
    text = demo_shell.run("table", "show", "demo.photos").stdout
    assert "size_bytes" in text and "month(taken_at)" in text


def test_a_query_prints_rows_to_stdout_and_the_rest_to_stderr(demo_shell):
    done = demo_shell.run("sql", "SELECT camera, count(*) AS n FROM demo.photos GROUP BY camera ORDER BY camera")
    assert done.returncode == 0
    assert done.stdout.split() == ["camera", "n", "Canon", "R6", "1500", "Fuji", "X-T5", "1500", "Pixel", "9", "1500"]
    assert "duckdb" in done.stderr


def test_a_query_comes_as_json_csv_and_parquet(demo_shell, tmp_path):
    query = "SELECT id, camera, taken_at, labels FROM frazil.demo.photos WHERE id >= 5000 ORDER BY id LIMIT 2"
    rows = demo_shell.json("sql", query)
    assert rows[0] == {"id": 5000, "camera": "Canon R6", "taken_at": rows[0]["taken_at"], "labels": ["sky", "people"]}
    assert rows[0]["taken_at"].startswith("2025-0")
    csv = demo_shell.run("sql", query, "--output", "csv").stdout.splitlines()
    assert csv[0] == "id,camera,taken_at,labels" and csv[1].startswith("5000,Canon R6,")
    out = tmp_path / "rows.parquet"
    done = demo_shell.run("sql", query, "--output", "parquet", "--out", str(out))
    assert done.returncode == 0 and done.stdout == ""
    assert pq.read_table(out).column("id").to_pylist() == [5000, 5002]
    assert list(tmp_path.iterdir()) == [out]


def test_text_is_limited_and_says_so_other_outputs_are_whole(demo_shell):
    done = demo_shell.run("sql", "SELECT id FROM demo.photos")
    assert len(done.stdout.splitlines()) == 1001 and "only the first 1000" in done.stderr
    assert len(demo_shell.json("sql", "SELECT id FROM demo.photos")) == 4500


def test_the_statement_may_come_from_standard_input(demo_shell):
    assert demo_shell.run("sql", "-", stdin="SELECT 40 + 2 AS answer").stdout.split() == ["answer", "42"]


def test_spark_takes_over_what_duckdb_cannot_do(demo_shell):
    rows = demo_shell.json("sql", "SELECT operation FROM demo.photos.snapshots ORDER BY committed_at")
    assert [row["operation"] for row in rows] == ["append", "append", "overwrite"]


def test_a_chapter_that_is_not_there_is_told_and_nothing_is_made(shell):
    done = shell.run("demo", "--chapter", "poems")
    assert done.returncode == 2
    assert all(
        word in done.stderr for word in ("poems", "tables", "topics", "upkeep", "content", "photos", "documents")
    )
    assert not (shell.folder / "frazil-demo").exists()


def test_the_demo_does_not_replace_a_folder_that_is_not_its_own(shell):
    mine = shell.folder / "frazil-demo"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    done = shell.run("demo")
    assert done.returncode == 2 and "--dir" in done.stderr
    assert (mine / "thesis.txt").read_text() == "years of work"
