"""`frazil backup` in processes of its own, as a person runs it; and the source system's commands as it wrote them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from frazil.catalogs import open_catalog
from frazil.settings import load_settings
from tests.e2e.conftest import FRAZIL, Shell, fingerprint
from tests.e2e.unprivileged import drop_file_rights
from tests.services.kit import Services

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})


def catalog_of(shell: Shell) -> Catalog:
    """The catalog that the shell's commands use."""
    settings = load_settings(environ=shell.environment(), folder=shell.folder)
    return open_catalog(settings.catalog(), settings.model.network)


def make_table(shell: Shell, name: str, commits: int = 2) -> None:
    catalog = catalog_of(shell)
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    table = catalog.create_table(name, ROWS.schema)
    for _ in range(commits):
        table.append(ROWS)


def count(shell: Shell, name: str) -> int:
    return catalog_of(shell).load_table(name).scan().to_arrow().num_rows


# -- as the source system wrote it -------------------------------------------------------------------------------------


@dataclass
class Seed:
    """The source system's environment, and where its tables lie."""

    shell: Shell
    kind: str
    location: str


@pytest.fixture(params=["sql", "hive"])
def seed(request, shell: Shell, services: Services) -> Iterator[Seed]:
    """Backups go to a bucket. Tables lie in one too, but not on Hive: this metastore makes their folders itself."""
    own, access = uuid.uuid4().hex[:8], services.seaweedfs.access
    for bucket in ("iceberg", "warehouse"):
        services.seaweedfs.make_bucket(f"{bucket}-{own}")
    shell.env |= {
        "FRAZIL_HOME": str(shell.folder / "lake"),
        "S3_ENDPOINT": access.endpoint,
        "S3_ACCESS_KEY": access.access_key,
        "S3_SECRET_KEY": access.secret_key,
        "BACKUP_BUCKET": f"iceberg-{own}",
        "WAREHOUSE_BUCKET": f"warehouse-{own}",
    }
    location = f"s3://warehouse-{own}/default/my_table_restored"
    if request.param == "hive":
        warehouse = (shell.folder / "warehouse").as_uri()
        shell.env |= {"HIVE_METASTORE_URI": services.hive.url, "WAREHOUSE_BUCKET": warehouse}
        location = f"{warehouse}/default_{own}/my_table_restored"
    yield Seed(shell, request.param, location)


def test_the_commands_of_the_source_system_work_as_it_writes_them(seed: Seed):
    shell, database = seed.shell, f"default_{uuid.uuid4().hex[:8]}"
    make_table(shell, f"{database}.my_table")
    done = shell.run("backup", "create", "--database", database, "--table", "my_table", "--backup-name", "my_backup")
    assert done.returncode == 0, done.stderr
    assert "backup my_backup: 1 table" in done.stdout
    assert "note: " in done.stderr and "BACKUP_BUCKET" in done.stderr, "a shared name is announced when it is used"
    done = shell.run(
        "backup", "restore", "--backup-name", "my_backup", "--target-database", database, "--target-table",
        "my_table_restored", "--target-location", seed.location, "--catalog-type", seed.kind,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    restored = catalog_of(shell).load_table(f"{database}.my_table_restored")
    assert restored.scan().to_arrow().num_rows == 6
    assert len(restored.metadata.snapshots) == 2, "history is kept, which the source system could not"
    assert restored.location() == seed.location
    (one,) = shell.json("backup", "list")
    assert one["name"] == "my_backup" and one["tables"][0]["catalog_kind"] == seed.kind


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def lake(shell: Shell) -> Shell:
    shell.write("frazil.yaml", "home: ./lake\nbackup:\n  bucket: ./other-disk\n")
    make_table(shell, "demo.photos")
    return shell


def test_a_lost_machine_comes_back_from_the_repository_alone(lake: Shell):
    """The short form of docs/disaster-recovery.md."""
    make_table(lake, "demo.videos", commits=1)
    lake.json("backup", "create", "--catalog", "frazil", "--name", "all")
    shutil.rmtree(lake.folder / "lake")
    lake.write("frazil.yaml", "home: ./new-lake\nbackup:\n  bucket: ./other-disk\n")
    assert [one["name"] for one in lake.json("backup", "list")] == ["all"]
    assert lake.json("backup", "verify", "latest")["sound"] is True
    plan = lake.json("backup", "restore", "latest", "--dry-run")
    assert [one["target"] for one in plan] == ["demo.photos", "demo.videos"]
    assert not (lake.folder / "new-lake" / "warehouse" / "demo").exists()
    lake.json("backup", "restore", "latest")
    assert (count(lake, "demo.photos"), count(lake, "demo.videos")) == (6, 3)
    assert lake.run("table", "verify", "demo.photos").returncode == 0


@pytest.mark.deep
def test_no_command_but_a_comparison_of_rows_needs_java(lake: Shell):
    env = {"JAVA_HOME": "/nowhere", "FRAZIL_SPARK__JAVA_HOME": "/nowhere"}
    for args in (
        ("create", "demo.photos", "--name", "a"), ("verify", "--level", "restore"), ("restore", "a", "--to", "demo.b"),
        ("restore", "a", "--replace"), ("rollback", "demo.photos"),
    ):  # fmt: skip
        done = lake.run("backup", *args, env=env)
        assert done.returncode == 0, (args, done.stderr)


def test_results_are_json_on_standard_output_and_progress_is_json_lines_on_standard_error(lake: Shell):
    done = lake.run("backup", "create", "demo.photos", "--output", "json")
    assert json.loads(done.stdout)["new_files"] == 2
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines and all(line["event"] == "progress" for line in lines)
    assert {"stage", "files", "total_files", "bytes", "total_bytes", "rate", "eta_s"} <= lines[0].keys()
    failed = lake.run("backup", "restore", "nothing", "--output", "json")
    assert failed.stdout == "" and json.loads(failed.stderr)["exit_code"] == failed.returncode == 10


@pytest.mark.deep
def test_without_the_right_to_write_nothing_happens(lake: Shell):
    lake.json("backup", "create", "demo.photos", "--name", "monday")
    repository = lake.folder / "other-disk"
    for folder in (repository, *repository.rglob("*")):
        if folder.is_dir():
            folder.chmod(0o555)
    before = fingerprint(repository)
    make_table(lake, "demo.videos")
    for args in (("create", "demo.videos"), ("delete", "monday", "--yes")):
        done = lake.run("backup", *args, preexec_fn=drop_file_rights)
        assert done.returncode == 12, done.stderr
        assert "Try: " in done.stderr and "report it" not in done.stderr
    assert fingerprint(repository) == before
    assert lake.run("backup", "restore", "monday", "--to", "demo.b", preexec_fn=drop_file_rights).returncode == 0
    place = lake.folder / "read-only"
    place.mkdir(mode=0o555)
    done = lake.run(
        "backup", "restore", "monday", "--to", "demo.c", "--target-location", str(place / "c"),
        preexec_fn=drop_file_rights,
    )  # fmt: skip
    assert done.returncode == 12, done.stderr
    assert list(place.iterdir()) == [] and not catalog_of(lake).table_exists("demo.c")


def test_a_repository_that_may_not_be_read_is_named(lake: Shell):
    lake.json("backup", "create", "demo.photos")
    (lake.folder / "other-disk" / "repository.json").chmod(0o000)
    done = lake.run("backup", "list", preexec_fn=drop_file_rights)
    assert done.returncode == 12 and "repository.json" in done.stderr and "Try: " in done.stderr


def test_an_interrupted_backup_leaves_none_and_the_next_one_continues(lake: Shell):
    table = catalog_of(lake).load_table("demo.photos")
    table.append(pa.table({"id": range(100_000), "name": [uuid.uuid4().hex * 8 for _ in range(100_000)]}))
    command = [FRAZIL, "backup", "create", "demo.photos", "--name", "monday", "--set", "backup.concurrency=1"]
    started = subprocess.Popen(
        command, env=lake.environment(), cwd=lake.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    data = lake.folder / "other-disk" / "data"
    deadline = time.monotonic() + 60
    while not data.exists() and started.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=60)
    assert started.returncode in (0, 130), errors
    if started.returncode == 130:  # it was not faster than the signal
        assert "interrupted" in errors and lake.json("backup", "list") == []
    else:
        shutil.rmtree(lake.folder / "other-disk")
    assert lake.run("backup", "create", "demo.photos", "--name", "monday").returncode == 0
    assert lake.json("backup", "verify", "--level", "checksums")["sound"] is True


def test_policies_run_by_cron_need_nothing_but_their_settings(lake: Shell, tmp_path: Path):
    with (lake.folder / "frazil.yaml").open("a") as file:
        file.write(
            "  metrics_file: ./metrics/frazil.prom\n  policies:\n    hourly:\n      every_s: 3600\n      keep_last: 2\n"
        )
    config = {"FRAZIL_CONFIG": str(lake.folder / "frazil.yaml")}
    first = lake.run("backup", "run", "--output", "json", env=config, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)[0]["backup"].startswith("hourly-")
    second = lake.run("backup", "run", "--output", "json", env=config, cwd=tmp_path)
    assert json.loads(second.stdout)[0]["due"] is False
    assert 'frazil_backup_failures{policy="hourly"} 0.0' in (lake.folder / "metrics" / "frazil.prom").read_text()
