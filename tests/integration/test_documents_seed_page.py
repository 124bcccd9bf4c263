"""The page "AWS S3 Iceberg tables for document metadata", from top to bottom, under Frazil's names.

Its Python is taken from docs/documents-s3.md, where it stands as on the page. A REST catalog and an S3 server are real.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.request import urlopen

import pytest

from frazil.documents.open import store_url
from frazil.documents.sql.store import SqlDocumentStore
from frazil.errors import NotFoundError
from frazil.settings import load_settings
from tests.e2e.conftest import Shell
from tests.e2e.servers import JSON, serving
from tests.services.kit import Services
from tests.services.nessie import start_nessie

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "documents-s3.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
#: A document that the page's time range has, and one outside of it.
INSIDE, OUTSIDE = datetime(2024, 2, 6, tzinfo=UTC), datetime(2024, 3, 1, tzinfo=UTC)


class Page:
    """A machine with the page's environment: DATABASE_URL, ICEBERG_… and AWS_…, and a home of its own."""

    def __init__(self, folder: Path, catalog_uri: str, warehouse: str, access: Any, **more: str) -> None:
        for name in ("home", "work"):
            (folder / name).mkdir()
        self.data = folder / "data"
        self.environment = {
            "DATABASE_URL": "iceberg",
            "ICEBERG_CATALOG_URI": catalog_uri,
            "ICEBERG_S3_ENDPOINT": access.endpoint,
            "ICEBERG_WAREHOUSE_PATH": warehouse,
            "AWS_ACCESS_KEY_ID": access.access_key,
            "AWS_SECRET_ACCESS_KEY": access.secret_key,
            "AWS_REGION": access.region,
            "FRAZIL_HOME": str(self.data),
            **more,
        }
        self.shell = Shell(folder / "work", folder / "home", self.environment)

    def run(self, *code: str) -> str:
        """Runs code as on the page, and returns what it prints."""
        said = io.StringIO()
        with patch.dict(os.environ, {"HOME": str(self.shell.home), **self.environment}), redirect_stdout(said):
            exec("\n".join(code), {})
        return said.getvalue()

    def put(self, **documents: dict[str, Any]) -> None:
        for name, values in documents.items():
            self.run(OPEN, f"db.put_metadata({{'document_id': {name!r}, **{values!r}}})")


OPEN = "from frazil.documents import get_iceberg_db\ndb = get_iceberg_db()"


def block(beginning: str) -> str:
    """The page's Python that contains a line."""
    (found,) = [code for code in PYTHON if beginning in code]
    return found


def page_on_rest(services: Services, folder: Path, **more: str) -> Page:
    rest = services.rest_on_s3
    assert rest.access is not None
    return Page(folder, rest.url, rest.warehouse, rest.access, **more)


@pytest.fixture(scope="module")
def page(services: Services, tmp_path_factory) -> Page:
    page = page_on_rest(services, tmp_path_factory.mktemp("page"))
    # 5. Initialize Iceberg Table
    command = re.search(r'^python -c "(.*get_iceberg_db\(\))"$', PAGE, re.MULTILINE)
    assert command is not None
    subprocess.run([sys.executable, "-c", command[1]], env=page.shell.environment(), check=True, timeout=120)
    page.put(
        abc123={"filename": "a.pdf", "storage_tier": "archive", "provider": "aws", "size_bytes": 10,
                "created_at": int(INSIDE.timestamp())},
        other={"filename": "b.pdf", "size_bytes": 5, "created_at": OUTSIDE.isoformat()},
    )  # fmt: skip
    return page


# -- 3. Configure Application


def test_the_settings_of_the_page_mean_the_same_in_a_file_and_in_the_environment(tmp_path: Path):
    (block_of_yaml,) = re.findall(r"^```yaml\n(database:\n.*?8181.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "config.yaml").write_text(block_of_yaml)
    variables = dict(re.findall(r"^export (\w+)=(\S+)$", PAGE, re.MULTILINE))
    assert set(variables) == {
        "DATABASE_URL", "ICEBERG_CATALOG_URI", "ICEBERG_S3_ENDPOINT", "ICEBERG_WAREHOUSE_PATH", "AWS_REGION",
    }  # fmt: skip
    of_file = load_settings(environ={}, config=tmp_path / "config.yaml")
    of_environment = load_settings(environ=variables)
    for settings in (of_file, of_environment):
        catalog = settings.catalog()
        assert store_url(settings) == "iceberg"
        assert (catalog.kind, catalog.uri) == ("rest", "http://localhost:8181")
        assert catalog.warehouse == "s3://document-archive-iceberg-warehouse"
        assert catalog.s3 is not None and catalog.s3.endpoint == "https://s3.us-east-1.amazonaws.com"


def test_the_environment_is_stronger_than_the_file_and_that_is_said(tmp_path: Path):
    (tmp_path / "frazil.yaml").write_text(
        "database: {url: 'sqlite:///x.db'}\niceberg: {catalog_uri: 'http://file:1'}\n"
    )
    environment = {"DATABASE_URL": "iceberg", "ICEBERG_CATALOG_URI": "http://environment:2"}
    settings = load_settings(environ=environment, folder=tmp_path)
    assert (store_url(settings), settings.catalog().uri) == ("iceberg", "http://environment:2")
    assert {notice.section for notice in settings.notices} >= {"database"}


def test_glue_is_named_by_one_word(tmp_path: Path):
    (tmp_path / "frazil.yaml").write_text(
        'database: {url: iceberg}\niceberg: {catalog_uri: "glue", warehouse_path: "s3://document-archive-iceberg-warehouse"}\n'
    )
    catalog = load_settings(environ={}, folder=tmp_path).catalog()
    assert (catalog.kind, catalog.uri, catalog.warehouse) == ("glue", None, "s3://document-archive-iceberg-warehouse")
    assert load_settings(environ={"ICEBERG_CATALOG_URI": "glue"}).catalog().kind == "glue"


# -- 4. Create S3 Bucket for Warehouse


def test_one_command_makes_the_bucket_with_versioning_and_encryption(page: Page, services: Services):
    made = page.shell.json("setup", "bucket", "s3://document-archive-iceberg-warehouse")
    assert (made["versioning"], made["encryption"]) == ("Enabled", "AES256")
    client = services.seaweedfs.access.client()
    assert client.get_bucket_versioning(Bucket="document-archive-iceberg-warehouse")["Status"] == "Enabled"


# -- 5. Initialize Iceberg Table


def test_the_table_is_partitioned_by_its_creation(page: Page):
    table = page.shell.json("table", "show", "document_archive.document_metadata")
    assert table["partitioning"] == ["month(created_at)"]
    assert table["location"].startswith("s3://")
    assert {"document_id", "storage_tier", "restore_status", "restore_expiry", "created_at"} <= {
        column["name"] for column in table["columns"]
    }


# -- Usage Examples


def test_the_python_of_the_page_runs_from_top_to_bottom(page: Page):
    queried = page.run(
        block("all_docs = db.list_metadata()"),
        "print([d['document_id'] for d in docs], [d.document_id for d in archive_docs], len(all_docs))",
    )
    assert queried.splitlines() == ["Total documents: 2", "Total size: 15 bytes", "['abc123'] ['abc123'] 2"]

    # The page asks for one hour ago; the document is younger, so that the test sets the moment.
    past = block("get_time_travel_snapshot")
    hour_ago = "int((datetime.now() - timedelta(hours=1)).timestamp() * 1000)"
    assert hour_ago in past
    with pytest.raises(NotFoundError, match="did not exist"):
        page.run(OPEN, past)
    time.sleep(0.01)
    moment = int(datetime.now().timestamp() * 1000)
    time.sleep(0.01)
    updated = page.run(
        OPEN,
        "from datetime import datetime, timedelta",
        block("db.update_metadata("),
        "found = db.get_metadata('abc123')",
        "print(found.restore_status, found.storage_tier, found.restore_expiry.isoformat())",
    )
    status, tier, expiry = updated.split()
    assert (status, tier) == ("restored", "archive")
    assert abs(datetime.fromisoformat(expiry) - datetime.now(UTC) - timedelta(days=7)) < timedelta(minutes=1)
    before = page.run(OPEN, past.replace(hour_ago, str(moment)), "print(past_metadata['restore_status'])")
    assert before.strip() == "none"

    told = page.run(OPEN, block("by_restore_status"))
    assert [line.split(":")[0] for line in told.splitlines()] == [
        "Documents by provider", "Documents by tier", "Documents by restore status",
    ]  # fmt: skip
    assert "'aws': 1" in told and "'archive': 1" in told and "'restored': 1" in told


def test_every_way_sees_the_same_documents(page: Page):
    """Commands, the page's Python, and HTTP on a port."""
    ids = {document["document_id"] for document in page.shell.json("docs", "list")["documents"]}
    assert ids >= {"abc123", "other"}
    with serving(page.shell) as server:
        path = "/api/v1/documents"
        assert {d["document_id"] for d in server.ask("GET", path).json["documents"]} == ids
        body = json.dumps({"filename": "by http.pdf"}).encode()
        made = server.ask("POST", path, body, JSON).json["document_id"]
        assert page.run(OPEN, f"print(db.get_metadata('{made}').filename)").strip() == "by http.pdf"
        page.run(OPEN, f"db.delete_metadata('{made}')")
        assert server.ask("GET", f"{path}/{made}").status == 404


# -- Migration from SQLite/MySQL to Iceberg


def test_documents_of_sqlite_come_over_with_their_past(services: Services, tmp_path: Path):
    page = page_on_rest(services, tmp_path, FRAZIL_DOCUMENTS__NAMESPACE="migrated_archive")
    page.data.mkdir()
    with SqlDocumentStore(f"sqlite:///{page.data / 'documents.db'}") as source:
        for number in range(20):
            source.put_metadata({"document_id": f"d{number}", "filename": f"{number}.pdf"})
        source.update_metadata("d7", {"storage_tier": "archive"})
    done = page.shell.run("docs", "migrate", "--from", "sqlite", "--to", "iceberg", "--yes")
    assert done.returncode == 0, done.stderr
    assert page.run(OPEN, block("Migrated")).strip() == "Migrated 20 documents"
    past = page.run(OPEN, "print([r.document.storage_tier for r in db.history('d7')])")
    assert past.strip() == "['standard', 'archive']"


# -- Monitoring


@pytest.mark.long("a pipeline starts Spark and merges before the snapshots are compared")
@pytest.mark.parametrize(
    "is_merged", [False, pytest.param(True, marks=[pytest.mark.deep, pytest.mark.spark], id="after the pipeline")]
)
def test_snapshots_are_seen_by_any_program_with_pyiceberg(page: Page, services: Services, is_merged: bool):
    if is_merged:
        done = page.shell.run("pipeline", "--drain")
        assert done.returncode == 0, done.stderr
    access, prefix = services.seaweedfs.access, "PYICEBERG_CATALOG__NESSIE__"
    environment = {
        f"{prefix}URI": services.rest_on_s3.url, f"{prefix}S3__ENDPOINT": access.endpoint,
        f"{prefix}S3__ACCESS_KEY_ID": access.access_key, f"{prefix}S3__SECRET_ACCESS_KEY": access.secret_key,
    }  # fmt: skip
    code = block("load_catalog") + "print(table.scan().to_arrow().num_rows)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=page.shell.environment() | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    snapshots, *latest, rows = done.stdout.splitlines()
    shown = page.shell.json("table", "snapshots", "document_archive.document_metadata")
    assert int(snapshots.removeprefix("Snapshots: ")) == len(shown)
    if is_merged:
        assert latest == [f"Latest snapshot ID: {shown[-1]['snapshot_id']}"]
        assert int(rows) == page.shell.json("docs", "stats")["total_documents"]


# -- Troubleshooting


@pytest.mark.deep
def test_the_doctor_tests_catalog_and_bucket(page: Page):
    checks = {check["name"]: check for check in json.loads(
        page.shell.run("doctor", "--no-spark", "--output", "json").stdout
    )["checks"]}  # fmt: skip
    assert checks["catalog"]["ok"] and checks["storage"]["ok"]
    assert "frazil setup bucket" in (checks["bucket"]["hint"] or "") or checks["bucket"]["ok"]
    away = page.shell.run("doctor", "--no-spark", "-o", "json", env={"ICEBERG_CATALOG_URI": "http://127.0.0.1:9"})
    failed = [check for check in json.loads(away.stdout)["checks"] if not check["ok"]]
    assert "catalog" in {check["name"] for check in failed}


# -- Options A and C: Nessie and Glue


@pytest.mark.deep
def test_nessie_works_by_its_address_alone_as_in_the_compose_file(services: Services, tmp_path: Path):
    """The catalog's properties are those of deploy/documents.yaml, the version store too."""
    access = services.seaweedfs.access
    bucket = "s3://document-archive-iceberg-warehouse"
    services.seaweedfs.make_bucket(bucket.removeprefix("s3://"))
    nessie = services.own(lambda folder: start_nessie(folder, access=access, location=f"{bucket}/"))
    address = nessie.url.removesuffix("/iceberg")
    with urlopen(f"{address}/iceberg/v1/config", timeout=10) as answer:
        assert answer.status == 200
    page = Page(tmp_path, address, bucket, access)
    page.put(abc123={"filename": "a.pdf", "storage_tier": "archive"})
    assert page.shell.json("table", "show", "document_archive.document_metadata")["location"].startswith(bucket)
    assert page.shell.json("docs", "get", "abc123")["storage_tier"] == "archive"


@pytest.mark.deep
def test_glue_works_by_one_word(services: Services, tmp_path: Path):
    glue = services.glue
    page = Page(
        tmp_path, "glue", f"{glue.warehouse}/documents", glue.access,
        FRAZIL_CATALOG__ENDPOINT=glue.url, FRAZIL_DOCUMENTS__NAMESPACE="page_archive",
    )  # fmt: skip
    page.put(abc123={"filename": "a.pdf", "storage_tier": "archive"})
    assert page.shell.json("docs", "stats")["total_documents"] == 1
    assert page.shell.json("table", "show", "page_archive.document_metadata")["partitioning"] == ["month(created_at)"]


def test_all_code_of_the_page_is_tested():
    tested = [
        "all_docs = db.list_metadata()", "get_time_travel_snapshot", "db.update_metadata(", "by_restore_status",
        "Migrated", "load_catalog",
    ]  # fmt: skip
    assert [code for code in PYTHON if not any(line in code for line in tested)] == []
