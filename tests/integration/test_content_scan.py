"""Scanning, reconciling and watching on real Spark, tables, folders and buckets."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pyspark.sql import SparkSession

from frazil.cli.run import run_command
from frazil.content.buckets import bucket_of
from frazil.content.scan.bucket import Bucket, open_bucket
from frazil.content.scan.engine import RunningEngine
from frazil.content.scan.executors import TaskRunner, run_on_executors
from frazil.content.scan.folder import open_folder
from frazil.content.scan.known_objects import KnownObjects, count_rows, load_known_objects
from frazil.content.scan.listing import Shard
from frazil.content.scan.scanner import ScanResult, run_scan
from frazil.content.scan.session import ScanSession
from frazil.content.scan.wait_visible import wait_until_visible
from frazil.demo.pictures import write
from frazil.errors import CredentialsError, NotFoundError, UnavailableError, UsageError
from frazil.observe.faultpoints import handled
from frazil.settings import Settings, load_settings
from frazil.settings.model import ContentSettings, S3Settings
from tests.content_kit import Content, an_object
from tests.content_sink_kit import ContentKit, content_kit
from tests.services.kit import Services

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

ODD = [
    "a b", "a+b", "a%2Bb", "a%20b", "new\nline", "cr\rx", "ctl\x01x", "ünï/çode", "a/b", "a-b/c", "q?x=1&y=<z>",
    "tab\tx", "..x", "e\u2028x", "\U0001f600", "deep/" * 20 + "x" * 200,
]  # fmt: skip


@pytest.fixture
def kit(lane_settings: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[ContentKit]:
    with content_kit(lane_settings, spark, tmp_path / "kit") as made:
        yield made


@pytest.fixture
def s3_kit(
    lane_settings: Settings, spark: SparkSession, services: Services, tmp_path: Path
) -> Iterator[tuple[ContentKit, Any, str]]:
    """A kit, a client of SeaweedFS and an empty bucket. Its clock has seconds; no other is compared with it."""
    access = services.seaweedfs.access
    bucket = f"b{uuid.uuid4().hex[:12]}"
    client = access.client()
    client.create_bucket(Bucket=bucket)
    s3 = S3Settings(**access.settings())  # type: ignore[arg-type]
    with content_kit(lane_settings, spark, tmp_path / "kit", s3=s3, skew_s=0.0) as made:
        yield made, client, bucket


def work_of(kit: ContentKit) -> ScanSession:
    return ScanSession(kit.settings, kit.kit.log, RunningEngine(kit.spark, kit.kit.client.address), kit.catalog)


def put(folder: Path, *keys: str, content: str = "x") -> None:
    for key in keys:
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def there(kit: ContentKit) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["key"], row["version_id"]): row for row in kit.objects() if not row["is_deleted"]}


def counts(plan: Any) -> tuple[int, int, int]:
    return plan.counts["missing"], plan.counts["orphaned"], plan.counts["mismatched"]


# -- scan --------------------------------------------------------------------------------------------------------------


@pytest.mark.long("runs several commands, each with a Spark session of its own")
def test_a_folder_is_in_the_table_as_it_is_and_reconcile_repairs_what_changed_behind_its_back(
    kit: ContentKit, tmp_path: Path
):
    folder = tmp_path / "photos"
    put(folder, *ODD)
    (folder / "link").symlink_to("/etc")
    place = open_folder(bucket_of(str(folder)), kit.settings)
    work = work_of(kit)
    done = work.scan(place)
    work.wait_until_visible(done.tally.end)
    assert (done.tally.objects, done.tally.bytes, done.tally.skipped) == (len(ODD), len(ODD), 1)
    rows = there(kit)
    assert {key for key, _ in rows} == set(ODD) and work.rows(place.bucket) == len(ODD)
    assert all(row["bucket"] == f"file://{folder}" and row["is_latest"] for row in rows.values())
    modified = datetime.fromtimestamp((folder / "a b").stat().st_mtime, tz=rows["a b", ""]["last_modified"].tzinfo)
    assert abs((rows["a b", ""]["last_modified"] - modified).total_seconds()) < 0.001
    plan, _ = work.plan(place)
    assert counts(plan) == (0, 0, 0) and plan.matching == len(ODD)

    put(folder, "new/file")
    put(folder, "a+b", content="longer")
    os.utime(folder / "new\nline", (1, 1))
    (folder / "ctl\x01x").unlink()
    plan, _ = work.plan(place, first=1)
    assert counts(plan) == (1, 1, 2) and plan.faults == 4
    assert {kind: [row["key"] for row in rows] for kind, rows in plan.first.items()} == {
        "missing": ["new/file"], "orphaned": ["ctl\x01x"], "mismatched": ["a+b"],
    }  # fmt: skip
    assert plan.first["mismatched"][0]["reason"] == "the sizes differ"
    assert {key for key, _ in there(kit)} == set(ODD), "a plan changes nothing"

    told = work.repair(place, plan)
    assert (told.there, told.gone) == (3, 1)
    assert {key for key, _ in there(kit)} == {*ODD, "new/file"} - {"ctl\x01x"}
    assert there(kit)["a+b", ""]["size"] == 6
    again, _ = work.plan(place)
    assert again.faults == 0


def test_reconcile_asks_again_so_that_an_old_plan_does_no_harm(kit: ContentKit, tmp_path: Path):
    folder = tmp_path / "photos"
    put(folder, "stays", "goes", "comes back")
    place = open_folder(bucket_of(str(folder)), kit.settings)
    work = work_of(kit)
    work.wait_until_visible(work.scan(place).tally.end)
    (folder / "comes back").unlink()
    put(folder, "short-lived")
    plan, _ = work.plan(place)
    assert counts(plan) == (1, 1, 0)
    put(folder, "comes back")
    (folder / "short-lived").unlink()
    told = work.repair(place, plan)
    assert (told.there, told.gone) == (1, 1)
    assert {key for key, _ in there(kit)} == {"stays", "goes", "comes back"}


def test_reconcile_says_nothing_about_what_it_cannot_look_into(kit: ContentKit, tmp_path: Path):
    """A link to itself stands for a folder of others: whoever runs the tests may read those, and nobody this."""
    folder = tmp_path / "photos"
    put(folder, "a/1", "b/2", "c/3")
    place = open_folder(bucket_of(str(folder)), kit.settings)
    work = work_of(kit)
    work.wait_until_visible(work.scan(place).tally.end)
    shutil.rmtree(folder / "b")
    (folder / "b").symlink_to("b")
    plan, _ = work.plan(place, "b/")
    assert counts(plan) == (0, 0, 0) and plan.counts["unknown"] == 1
    plan, _ = work.plan(place)
    assert counts(plan) == (0, 1, 0), "seen from above it is a link, and so no object is there"


@pytest.mark.deep
def test_a_scan_on_executors_that_broke_off_tells_no_page_twice(kit: ContentKit, tmp_path: Path):
    folder = tmp_path / "many"
    for name in "abc":
        (folder / name).mkdir(parents=True)
        for number in range(1100):
            (folder / name / f"{number:05d}").touch()
    place = open_folder(bucket_of(str(folder)), kit.settings)
    rounds = 0

    def fault(step: str) -> None:
        nonlocal rounds
        rounds += step == "content.scan.round"
        if step == "content.scan.round" and rounds == 2:
            raise UnavailableError("the driver has a fault")

    nothing = KnownObjects(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    asked = 0

    def elsewhere() -> TaskRunner:
        nonlocal asked
        asked += 1
        return replace(run_on_executors(kit.spark, kit.kit.client.address, nothing), tasks=1)

    def look() -> ScanResult:
        return run_scan(kit.settings, kit.kit.log, place, nothing, elsewhere=elsewhere, pages=1, pages_here=1)

    with handled(fault), pytest.raises(UnavailableError, match="objects were seen"):
        look()
    done = look()
    assert done.resumed and done.tally.objects == done.tally.new == 3300 and asked == 2
    work_of(kit).wait_until_visible(done.tally.end)
    assert Counter(row["key"] for row in kit.journal()).most_common(1)[0][1] == 1
    assert len(there(kit)) == len(kit.journal()) == 3300


def test_a_scan_waits_for_a_pipeline_that_runs_elsewhere(kit: ContentKit, tmp_path: Path):
    put(tmp_path / "photos", "a", "b")
    place = open_folder(bucket_of(str(tmp_path / "photos")), kit.settings)
    done = work_of(kit).scan(place)
    arguments = (kit.settings, kit.kit.client, RunningEngine(kit.spark, kit.kit.client.address), done.tally.end)
    stop = threading.Event()
    with kit.pipeline() as pipeline:
        thread = threading.Thread(target=pipeline.run, args=(stop,))
        thread.start()
        try:
            assert not wait_until_visible(*arguments, catalog=kit.catalog, patience_s=60)
        finally:
            stop.set()
            thread.join()
    assert {key for key, _ in there(kit)} == {"a", "b"}
    put(tmp_path / "photos", "c")
    end = work_of(kit).scan(place).tally.end
    assert wait_until_visible(*arguments[:-1], end, catalog=kit.catalog, patience_s=0.5), "nobody else did"
    assert ("c", "") in there(kit)


# -- buckets -----------------------------------------------------------------------------------------------------------


@pytest.mark.long("scans a bucket twice and drains the pipeline on Spark")
@pytest.mark.deep
def test_a_bucket_with_odd_keys_is_in_the_table_as_it_is(s3_kit: tuple[ContentKit, Any, str]):
    kit, client, bucket = s3_kit
    for key in ODD:
        client.put_object(Bucket=bucket, Key=key, Body=key.encode())
    work, place = work_of(kit), open_bucket(bucket, kit.settings, None)
    done = work.scan(place)
    work.wait_until_visible(done.tally.end)
    assert place.versions is None and done.tally.objects == len(ODD)
    etags = {key: client.head_object(Bucket=bucket, Key=key)["ETag"].strip('"') for key in ODD}
    assert {key: row["etag"] for (key, _), row in there(kit).items()} == etags
    assert work.plan(place)[0].faults == 0
    again = work.scan(place)
    assert (again.told, again.tally.objects) == (0, len(ODD)), "what the table knows is not told again"

    client.put_object(Bucket=bucket, Key="a+b", Body=b"other")
    client.put_object(Bucket=bucket, Key="missing", Body=b"m", ContentType="text/x", Metadata={"who": "me"})
    client.delete_object(Bucket=bucket, Key="new\nline")
    patient = Settings(kit.settings.model.model_copy(update={"content": with_skew(kit, 3600.0)}))
    plan, _ = replace(work, settings=patient).plan(place)
    assert counts(plan) == (0, 0, 0) and plan.counts["recent"] == 3, "events may be under way for what was just done"
    after_a_second()
    plan, _ = work.plan(place)
    assert counts(plan) == (1, 1, 1) and plan.counts["recent"] == 0
    told = work.repair(place, plan)
    assert (told.there, told.gone) == (2, 1)
    rows = there(kit)
    assert {key for key, _ in rows} == {*ODD, "missing"} - {"new\nline"}
    assert rows["missing", ""]["content_type"] == "text/x" and dict(rows["missing", ""]["user_metadata"]) == {
        "who": "me"
    }
    assert work.plan(place)[0].faults == 0
    assert work.plan(place, "a")[0].matching == len([key for key in rows if key[0].startswith("a")])


def test_a_bucket_with_versions_is_in_the_table_with_all_of_them(s3_kit: tuple[ContentKit, Any, str]):
    kit, client, bucket = s3_kit
    client.put_object(Bucket=bucket, Key="before", Body=b"0")
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for key in ("a b", "d/x", "d/new\nline"):
        for body in (b"1", b"22"):
            client.put_object(Bucket=bucket, Key=key, Body=body)
    client.delete_object(Bucket=bucket, Key="a b")
    work, place = work_of(kit), open_bucket(bucket, kit.settings, None)
    done = work.scan(place)
    work.wait_until_visible(done.tally.end)

    def listed() -> dict[tuple[str, str], tuple[bool, bool]]:
        found = client.list_object_versions(Bucket=bucket)
        entries = [(v, False) for v in found.get("Versions", [])] + [(m, True) for m in found.get("DeleteMarkers", [])]
        return {
            (e["Key"], "" if e["VersionId"] == "null" else e["VersionId"]): (e["IsLatest"], marker)
            for e, marker in entries
        }

    def recorded() -> dict[tuple[str, str], tuple[bool, bool]]:
        return {key: (row["is_latest"], row["is_delete_marker"]) for key, row in there(kit).items()}

    assert done.tally.objects == 8 and recorded() == listed()
    assert work.scan(place).told == 0
    (newest,) = [v for (k, v), (latest, _) in listed().items() if k == "d/x" and latest]
    client.delete_object(Bucket=bucket, Key="d/x", VersionId=newest)
    client.put_object(Bucket=bucket, Key="before", Body=b"1")
    after_a_second()
    plan, _ = work.plan(place)
    assert counts(plan) == (1, 1, 2)
    reasons = {(row["key"], row["reason"]) for row in plan.first["mismatched"]}
    assert reasons == {(key, "only one of them is the latest version") for key in ("d/x", "before")}
    work.repair(place, plan)
    assert recorded() == listed()
    assert work.plan(place)[0].faults == 0
    only_latest = open_bucket(bucket, kit.settings, "latest")
    count = len([1 for latest, _ in listed().values() if latest])
    assert work.scan(only_latest).tally.objects == work.rows(bucket, latest=True) == count


def test_what_a_head_has_told_is_no_news_to_a_listing_with_milliseconds(services: Services, tmp_path: Path):
    """As on MinIO: moto too lists parts of seconds, which no HEAD has."""
    access, bucket = services.glue.access, f"b{uuid.uuid4().hex[:12]}"
    access.client().create_bucket(Bucket=bucket)
    content = Content(load_settings(flags={"home": str(tmp_path)}, environ={}))
    place = Bucket(bucket, S3Settings(**access.settings()), content.settings.model.network)  # type: ignore[arg-type]
    for number in range(3):  # one of them, at least, is not written in the first millisecond of a second
        access.client().put_object(Bucket=bucket, Key=f"k{number}", Body=b"1")
        ((_, (head,)),) = list(place.look_up([(f"k{number}", "")]))
        row = {name: head[name] for name in ("key", "size", "etag", "storage_class")}
        content.add_objects(
            [an_object(**row, bucket=bucket, last_modified=datetime.fromisoformat(head["last_modified"]))]
        )
    (page,) = place.pages(Shard(""))
    assert any("." in seen["last_modified"].rstrip("0Z").rpartition(":")[2] for seen in page.objects)
    assert load_known_objects(content.tables, bucket, "").diff(page.objects).objects == []


def test_a_bucket_that_is_not_there_or_not_allowed_is_told_apart(s3_kit: tuple[ContentKit, Any, str]):
    kit, _, bucket = s3_kit
    with pytest.raises(NotFoundError, match="bucket not found: s3://nope-nope"):
        open_bucket("nope-nope", kit.settings, None)
    wrong = kit.settings.model.s3.model_copy(
        update={"secret_key": S3Settings(access_key="k", secret_key="x").secret_key}
    )
    settings = Settings(kit.settings.model.model_copy(update={"s3": wrong}))
    with pytest.raises(CredentialsError, match="were rejected"):
        open_bucket(bucket, settings, None)


def test_a_bucket_that_vanishes_in_the_middle_breaks_a_scan_off_and_deletes_nothing(
    s3_kit: tuple[ContentKit, Any, str],
):
    kit, client, bucket = s3_kit
    client.put_object(Bucket=bucket, Key="a", Body=b"1")
    work, place = work_of(kit), open_bucket(bucket, kit.settings, None)
    work.wait_until_visible(work.scan(place).tally.end)
    client.delete_object(Bucket=bucket, Key="a")
    client.delete_bucket(Bucket=bucket)
    for do in (lambda: work.scan(place), lambda: work.plan(place), lambda: list(place.look_up([("a", "")]))):
        with pytest.raises(NotFoundError, match="bucket not found"):
            do()
    assert ("a", "") in there(kit)


def test_reconcile_compares_with_an_inventory_and_with_a_journal(kit: ContentKit, tmp_path: Path):
    """By the names of columns, whatever else such a table has."""
    bucket, names = "elsewhere", f"{kit.settings.model.content.namespace}.inventory"
    work = work_of(kit)
    from frazil.content.scan.listing import resolve_target
    from frazil.content.scan.publish import ObservationPublisher
    from frazil.log.remote.producer import Producer

    place = resolve_target(bucket, kit.settings, look=False)
    old = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    with Producer(kit.kit.log, kit.topic, internal=True) as producer:
        publisher = ObservationPublisher(producer, bucket, "scan", 8_000_000)
        publisher.publish([{"key": key, "etag": "e", "size": 1} for key in ("same", "orphan", "other")], old)
    work.wait_until_visible(publisher.end)
    values = "('same', '', 1, '\"e\"', false), ('missing', 'null', 2, 'm', false), ('other', '', 1, 'x', false)"
    table = f"sql.{names}"
    kit.spark.sql(
        f"CREATE TABLE {table} USING iceberg AS SELECT '{bucket}' AS bucket, *, current_timestamp() AS extra FROM "
        f"VALUES {values} AS t(key, version_id, size, e_tag, is_delete_marker)"
    )
    plan, _ = work.plan(place, against=names)
    assert counts(plan) == (1, 1, 1) and plan.matching == 1
    assert plan.first["mismatched"][0]["reason"] == "the etags differ"
    assert work.plan(place, against=f"sql.{names}")[0].counts == plan.counts
    kit.spark.sql(
        f"CREATE TABLE {table}_journal USING iceberg AS SELECT '{bucket}' AS bucket, * FROM VALUES "
        "('same', CAST(NULL AS STRING), '01', 'CREATE', 9, 'old'), ('same', NULL, '02', 'CREATE', 1, 'e'), "
        "('orphan', NULL, '01', 'CREATE', 1, 'e'), ('orphan', NULL, '02', 'DELETE', NULL, NULL), "
        "('other', NULL, '01', 'CREATE', 1, 'e') AS t(key, version_id, sequence_number, record_type, size, e_tag)"
    )
    plan, _ = work.plan(place, against=f"{names}_journal")
    assert counts(plan) == (0, 1, 0) and plan.matching == 2
    with pytest.raises(NotFoundError):
        work.plan(place, against="nope.nope")
    kit.spark.sql(f"CREATE TABLE {table}_no USING iceberg AS SELECT 1 AS id")
    with pytest.raises(UsageError, match="not an inventory"):
        work.plan(place, against=f"{names}_no")


def with_skew(kit: ContentKit, skew_s: float) -> ContentSettings:
    return kit.settings.model.content.model_copy(update={"skew_s": skew_s})


def after_a_second() -> None:
    """The clock of HTTP has seconds, and what happened in the same one has no order."""
    time.sleep(1.1)


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def frazil(
    lane_settings: Settings, spark: SparkSession, tmp_path: Path, monkeypatch, capsys
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process, on the session that is there."""

    @contextmanager
    def shared(_settings: Settings) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("frazil.spark.spark_session", shared)
    catalog = lane_settings.catalog("sql")
    section = {"kind": "sql", "uri": catalog.uri, "warehouse": catalog.warehouse}
    name = f"c{uuid.uuid4().hex[:10]}"
    (tmp_path / "frazil.yaml").write_text(
        yaml.safe_dump(
            {
                "home": str(tmp_path / "home"),
                "catalogs": {"sql": section},
                "log": {"min_free": 0},
                "content": {"namespace": name, "topic": f"{name}_events"},
            }
        )
    )

    def run(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command("content", "content", [*args, "--config", str(tmp_path / "frazil.yaml")])
        return code, *capsys.readouterr()

    return run


@pytest.mark.slow
def test_scan_reconcile_and_watch_as_commands(frazil: Callable[..., tuple[int, str, str]], tmp_path: Path):
    folder = tmp_path / "photos"
    put(folder, "a.jpg", "b/c.jpg")
    on = (str(folder), "--catalog", "sql")
    (tmp_path / "empty").mkdir()
    code, out, err = frazil("scan", str(tmp_path / "empty"), "--catalog", "sql", "-o", "json")
    assert code == 0, err
    assert (json.loads(out)["objects"], json.loads(out)["in_table"]) == (0, 0)
    code, out, err = frazil("scan", *on, "--no-extract", "-o", "json")
    assert code == 0, err
    told = json.loads(out)
    assert (told["objects"], told["bytes"], told["in_table"], told["resumed"], told["skipped"]) == (2, 2, 2, False, 0)
    assert (told["new"], told["changed"], told["unchanged"], told["gone"]) == (2, 0, 0, 0)
    assert told["extraction"] is None and told["summary"]["statuses"] == {"pending": 2}
    assert told["bucket"] == f"file://{folder}" and told["visible_s"] >= told["listing_s"] > 0
    assert frazil("reconcile", *on)[0] == 0

    (folder / "a.jpg").unlink()
    code, out, err = frazil("scan", *on, "--keep-gone", "--no-extract")
    assert code == 0 and "1 more rows than objects were seen" in err and "1 file, 1 B: nothing has changed" in out
    code, out, err = frazil("reconcile", *on, "-o", "json")
    assert code == 14 and json.loads(err.splitlines()[-1])["error"] == "DifferencesError"
    told = json.loads(out)
    assert (told["missing"], told["orphaned"], told["mismatched"], told["applied"]) == (0, 1, 0, False)
    assert told["first"]["orphaned"][0]["key"] == "a.jpg"
    code, out, _ = frazil("reconcile", *on, "--apply", "-o", "json")
    assert code == 0 and json.loads(out)["repaired"] == {"there": 0, "gone": 1}
    code, out, _ = frazil("reconcile", *on, "--apply", "-o", "json")
    assert code == 0 and json.loads(out)["repaired"] is None

    put(folder, "d.jpg")
    (folder / "b/c.jpg").unlink()
    code, out, err = frazil("watch", *on, "--every", "0.2", "--for", "1.5", "-o", "json")
    assert code == 0, err
    changes = [json.loads(line) for line in out.splitlines()]
    assert sorted((c["change"], c["key"]) for c in changes) == [("gone", "b/c.jpg"), ("new", "d.jpg")]
    assert "2 changes were published" in err
    code, out, _ = frazil("reconcile", *on, "-o", "json")
    assert code == 0 and json.loads(out)["matching"] == 1
    code, out, err = frazil("watch", *on, "--every", "0.2", "--for", "0.5")
    assert (code, out) == (0, ""), "what the table knows is no news"


@pytest.mark.deep
def test_a_scan_looks_inside_and_the_next_only_at_what_changed_and_without_spark(
    frazil: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch
):
    """The day of a person with photos: one command, a summary; the next day another few photos."""
    folder = tmp_path / "photos"
    write(folder, 40)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 is no picture")
    on = ("scan", str(folder), "--catalog", "sql")
    code, out, err = frazil(*on, "-o", "json")
    assert code == 0, err
    told = json.loads(out)
    assert (told["new"], told["extraction"]["objects"], told["in_table"]) == (41, 41, 41)
    summary = told["summary"]
    assert {share["name"] for share in summary["by_camera"]} >= {"Canon EOS R5", "FUJIFILM X-T5"}
    assert sum(share["objects"] for share in summary["by_year"]) == 40 and summary["first_month"] >= "2021-01"
    assert summary["duplicates"]["objects"] == 2 and summary["with_place"] > 20
    assert summary["statuses"] == {"ok": 40, "failed": 1} and "broken" not in json.dumps(summary["by_kind"])
    assert summary["failures"] and len(summary["largest"]) == 3

    with monkeypatch.context() as patch:
        patch.setattr("frazil.spark.spark_session", None)
        code, out, err = frazil(*on)
    assert code == 0, err
    assert "41 files" in out and "nothing has changed" in out and "Canon EOS R5" in out
    assert f"frazil content search {folder} --status failed" in out and "extracted" not in out

    write(folder / "later", 3, seed=8)
    (folder / "broken.jpg").unlink()
    code, out, err = frazil(*on, "-o", "json")
    assert code == 0, err
    told = json.loads(out)
    assert (told["new"], told["changed"], told["gone"], told["unchanged"]) == (3, 0, 1, 40)
    assert told["extraction"]["objects"] == 3 and told["in_table"] == 43
    assert told["summary"]["statuses"] == {"ok": 43}


def test_what_waits_in_the_log_is_taken_before_anything_is_compared(
    frazil: Callable[..., tuple[int, str, str]], tmp_path: Path
):
    folder = tmp_path / "photos"
    put(folder, "a")
    modified = (folder / "a").stat().st_mtime_ns
    on = ("scan", str(folder), "--catalog", "sql", "--no-extract", "-o", "json")
    assert frazil(*on)[0] == 0
    put(folder, "a", content="longer")
    code, out, err = frazil(*on, "--no-wait")
    assert code == 0 and (json.loads(out)["changed"], json.loads(out)["in_table"]) == (1, None), err
    put(folder, "a")
    os.utime(folder / "a", ns=(modified, modified))
    code, out, err = frazil(*on)
    assert code == 0 and json.loads(out)["changed"] == 1, "the table hears of the longer one first, else it would stay"
    code, out, _ = frazil("show", str(folder), "a", "--catalog", "sql", "-o", "json")
    assert json.loads(out)["size"] == 1


def test_a_bucket_that_was_removed_is_recorded_where_its_store_says_so(
    frazil: Callable[..., tuple[int, str, str]], services: Services, tmp_path: Path
):
    access, bucket = services.seaweedfs.access, f"b{uuid.uuid4().hex[:12]}"
    client = access.client()
    client.create_bucket(Bucket=bucket)
    config = tmp_path / "frazil.yaml"
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"s3": access.settings()}))
    content = Content(load_settings(config=config, environ={}), "sql")
    content.add_objects([an_object(key, bucket=bucket) for key in ("a", "d/b")] + [an_object("other")])
    on = (f"s3://{bucket}", "--catalog", "sql", "-o", "json")
    code, _, err = frazil("reconcile", *on, "--bucket-gone", "--apply")
    assert code == 11 and "exists" in err

    client.delete_bucket(Bucket=bucket)
    code, _, err = frazil("reconcile", *on)
    assert code == 10 and "--bucket-gone" in err
    gone = ("reconcile", *on, "--bucket-gone")
    assert frazil(*gone, "--apply", "--set", "s3.secret_key=wrong")[0] == 12, "a store that refuses proves nothing"
    assert frazil(*gone, "--apply", "--set", "s3.endpoint=http://127.0.0.1:9")[0] == 1, "nor does one that is down"
    code, out, err = frazil(*gone, "--prefix", "d/")
    assert code == 14 and "1 difference was found" in err and json.loads(out)["orphaned"] == 1
    code, out, err = frazil(*gone)
    assert code == 14 and "2 differences were found" in err and json.loads(out)["orphaned"] == 2
    code, out, err = frazil(*gone, "--apply")
    assert code == 0, err
    assert json.loads(out)["repaired"] == {"there": 0, "gone": 2}
    assert json.loads(frazil(*gone)[1])["orphaned"] == 0
    assert count_rows(content.tables, "photos", "") == 1, "other buckets are as they were"
    code, out, err = frazil("reconcile", str(tmp_path), "--bucket-gone")
    assert code == 2 and "only an object store" in err


def test_bad_input_changes_nothing(frazil: Callable[..., tuple[int, str, str]], tmp_path: Path):
    put(tmp_path, "file", "photos/a")
    for args, code, words in (
        (("scan", str(tmp_path / "nope")), 10, "no folder"),
        (("scan", str(tmp_path / "file")), 2, "is a file"),
        (("scan", str(tmp_path / "photos"), "--prefix", "../x"), 2, "not a prefix"),
        (("scan", "s3://b/inside"), 2, "inside a bucket"),
        (("scan", str(tmp_path / "photos"), "--extract", "--no-wait"), 2, "that are in the table"),
        (("scan", str(tmp_path / "photos"), "--set", "content.extract.extractors=nobody"), 2, "nobody"),
        (("watch", "s3://b"), 2, "not a folder"),
        (("watch", str(tmp_path / "nope")), 10, "no folder"),
        (("reconcile", str(tmp_path / "photos"), "--against", "no.such", "--catalog", "sql"), 10, "no.such"),
    ):
        found, out, err = frazil(*args)
        assert (found, out) == (code, "") and words in err, (args, err)
        assert "Try:" in err
    assert not (tmp_path / "home/content").exists()
