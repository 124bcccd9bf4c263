"""`frazil replica` in processes of its own, as a person runs it; and the source system's command as it wrote it."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import SecretStr
from pyiceberg.catalog import Catalog

from frazil.catalogs import open_catalog
from frazil.replica.config import embed_catalog
from frazil.settings import NetworkSettings, S3Settings, load_settings
from frazil.storage import open_store
from tests.e2e.conftest import Shell, fingerprint
from tests.services.kit import Services


def catalog_of(shell: Shell, config: str, name: str | None = None) -> Catalog:
    settings = load_settings(config=Path(config), environ={}, folder=shell.folder)
    return open_catalog(settings.catalog(name), settings.model.network)


def write(shell: Shell, name: str, *ids: int, config: str = "primary.yaml") -> None:
    """One commit."""
    catalog = catalog_of(shell, config)
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    catalog.create_table_if_not_exists(name, rows.schema).append(rows)


def rows(shell: Shell, name: str, *, config: str = "replica.yaml", catalog: str | None = None) -> list[int]:
    table = catalog_of(shell, config, catalog).load_table(name)
    found: list[int] = table.scan().to_arrow()["id"].to_pylist()
    return sorted(found)


def replicate(shell: Shell, *left_out: str) -> None:
    source, target = shell.folder / "primary" / "warehouse", shell.folder / "dr" / "warehouse"
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*left_out))


@pytest.fixture
def site(shell: Shell) -> Shell:
    """Settings of the primary and of the replica, and a table of one commit."""
    shell.write("primary.yaml", "home: ./primary\n")
    shell.write(
        "replica.yaml",
        "home: ./replica\nreplica:\n  replicated_path: ./dr/warehouse\n  tables:\n    prod.orders: {max_lag_s: 60}\n",
    )
    shell.env["FRAZIL_CONFIG"] = "replica.yaml"
    write(shell, "prod.orders", 1, 2)
    return shell


@pytest.mark.long("the whole life of a replica by its commands, one process each")
@pytest.mark.deep
def test_a_primary_is_lost_and_its_replica_takes_over(site: Shell):
    replicate(site)
    made = site.json("replica", "sync", "prod.orders")
    assert (made["action"], made["snapshots"], rows(site, "prod.orders")) == ("created", 1, [1, 2])

    # Half a replication: the metadata of the second commit, without its data.
    write(site, "prod.orders", 3)
    replicate(site, "*.parquet")
    half = site.json("replica", "sync", "prod.orders")
    assert (half["action"], half["lag_snapshots"], len(half["missing"])) == ("waiting", 1, 1)
    assert "00000-0-" in half["missing"][0] and rows(site, "prod.orders") == [1, 2]
    shown = site.run("replica", "sync", "prod.orders").stdout
    assert "newer versions wait for 1 file:" in shown and half["missing"][0] in shown
    (status,) = site.json("replica", "status")
    assert (status["state"], status["lag_snapshots"]) == ("waiting", 1) and status["lag_s"] > 0

    # The rest.
    replicate(site)
    copied = fingerprint(site.folder / "dr")
    assert site.json("replica", "sync", "prod.orders")["action"] == "updated"
    assert rows(site, "prod.orders") == [1, 2, 3]
    assert site.json("replica", "sync", "prod.orders")["action"] == "unchanged"
    (checked,) = site.json("replica", "verify")
    assert (checked["sound"], checked["files"]) == (True, 2)

    # The primary is gone.
    shutil.rmtree(site.folder / "primary")
    refused = site.run("replica", "failover", "prod.orders")
    assert refused.returncode == 2 and "a failover needs --yes" in refused.stderr
    assert site.run("replica", "failover", "prod.orders", "--dry-run").returncode == 0
    (done,) = site.json("replica", "failover", "prod.orders", "--yes")
    assert (done["done"], done["lost"]) == (True, [])
    write(site, "prod.orders", 4, config="replica.yaml")
    assert rows(site, "prod.orders") == [1, 2, 3, 4]
    assert fingerprint(site.folder / "dr") == copied, "nothing is ever written to the replicated folder"
    ended = site.run("replica", "sync", "prod.orders")
    assert ended.returncode == 12 and "no replica any more" in ended.stderr
    assert {run["result"] for run in site.json("replica", "history")} >= {"created", "updated", "failover"}
    assert site.json("replica", "status")[0]["state"] == "primary"


def test_the_command_of_the_source_system_works_as_it_writes_it(shell: Shell):
    """Its warehouse is the replicated folder itself, which Frazil never writes to; and nothing defines its catalog."""
    shell.write("primary.yaml", "home: ./primary\n")
    write(shell, "prod.transactions", 1, 2)
    shell.env["FRAZIL_HOME"] = str(shell.folder / "home")
    warehouse = shell.folder / "ifs" / "dr" / "warehouse"
    shutil.copytree(shell.folder / "primary" / "warehouse", warehouse)
    before = fingerprint(warehouse)
    command = (
        "replica", "sync", "--replicated-path", str(warehouse), "--catalog", "dr_catalog", "--database", "prod",
        "--table", "transactions", "--warehouse", str(warehouse), "--log-level", "DEBUG",
    )  # fmt: skip
    done = shell.run(*command)
    assert done.returncode == 0, done.stderr
    assert "prod.transactions in catalog 'dr_catalog' is created: version 1, 1 snapshot, 1 new file" in done.stdout
    assert "no setting defines the catalog 'dr_catalog': an embedded one is used" in done.stderr
    assert f"{warehouse} is in the replicated path, which is never written to" in done.stderr
    assert "[info" in done.stderr
    assert fingerprint(warehouse) == before
    beside = f"{warehouse}-replica"
    shell.write(
        "dr.yaml", f"catalogs: {{dr_catalog: {{uri: 'sqlite:///{beside}/catalog.db', warehouse: '{beside}'}}}}\n"
    )
    settings = ["--config", "dr.yaml", "--catalog", "dr_catalog"]
    assert rows(shell, "prod.transactions", config="dr.yaml", catalog="dr_catalog") == [1, 2]
    assert shell.json("replica", "status", *settings)[0]["table"] == "prod.transactions"
    options = ["--catalog", "dr_catalog", "--warehouse", str(warehouse)]
    assert shell.json("replica", "history", *options)[0]["result"] == "created"


@pytest.mark.deep
def test_tables_of_a_file_are_synced_together_and_one_that_fails_stops_no_other(site: Shell):
    for name in ("prod.payments", "sales.events"):
        write(site, name, 1)
    replicate(site)
    (metadata,) = (site.folder / "dr/warehouse/prod/payments/metadata").glob("00001-*.metadata.json")
    metadata.write_text("{")
    for older in metadata.parent.glob("00000-*"):
        older.unlink()
    site.write(
        "replica.yaml",
        f"""\
home: ./replica
replica:
  replicated_path: ./dr/warehouse
  metrics_file: ./metrics/replica.prom
  tables:
    prod.orders:
      max_lag_s: 60
    prod.payments:
      max_lag_s: 60
    copies.events:
      replicated_path: ./dr/warehouse/sales/events
      source_prefixes:
        {(site.folder / "primary/warehouse/sales").as_uri()}: {site.folder / "dr/warehouse/sales"}
""",
    )
    done = site.run("replica", "run", "--output", "json")
    assert done.returncode == 3, done.stderr
    found = {run["identifier"]: run for run in json.loads(done.stdout)}
    assert [found[name]["action"] for name in ("prod.orders", "prod.payments", "copies.events")] == [
        "created", "failed", "created",
    ]  # fmt: skip
    assert found["prod.payments"]["error"]["exit_code"] == 13
    assert "error: prod.payments: " in done.stderr and "1 of 3 tables failed" in done.stderr
    assert rows(site, "copies.events") == [1]
    metrics = (site.folder / "metrics" / "replica.prom").read_text()
    assert 'frazil_replica_failures{table="prod.payments"} 1.0' in metrics
    assert 'frazil_replica_failures{table="prod.orders"} 0.0' in metrics
    everything = site.run("replica", "sync", "--all", "--output", "json")
    assert everything.returncode == 3 and len(json.loads(everything.stdout)) == 3


def test_a_beacon_proves_what_was_committed(site: Shell):
    beacon = site.json("replica", "beacon", "primary/warehouse", "--config", "primary.yaml")
    assert [table["table"] for table in beacon["tables"]] == ["prod.orders"]
    replicate(site)
    made = site.json("replica", "sync", "prod.orders", "--witnessed-only")
    assert (made["action"], made["witnessed"]) == ("created", True)


@pytest.mark.deep
def test_the_command_of_the_source_system_works_on_s3(shell: Shell, services: Services):
    """As after AWS DataSync: the embedded catalog of a bucket lies in the home of Frazil."""
    shell.write("primary.yaml", "home: ./primary\n")
    write(shell, "sales.orders", 1, 2)
    access, bucket = services.seaweedfs.access, f"dr-{uuid.uuid4().hex[:8]}"
    services.seaweedfs.make_bucket(bucket)
    s3 = S3Settings(endpoint=access.endpoint, access_key=access.access_key, secret_key=SecretStr(access.secret_key))
    store = open_store(f"s3://{bucket}/warehouse", s3=s3, network=NetworkSettings())
    warehouse = shell.folder / "primary" / "warehouse"
    for file in warehouse.rglob("*"):
        if file.is_file():
            store.put(file.relative_to(warehouse).as_posix(), file.read_bytes())
    shutil.rmtree(shell.folder / "primary")
    shell.env |= {
        "FRAZIL_HOME": str(shell.folder / "home"),
        "FRAZIL_S3__ENDPOINT": access.endpoint,
        "FRAZIL_S3__ACCESS_KEY": access.access_key,
        "FRAZIL_S3__SECRET_KEY": access.secret_key,
    }
    command = (
        "replica", "sync", "--replicated-path", f"s3://{bucket}/warehouse", "--catalog", "cloud_catalog", "--database",
        "sales", "--table", "orders", "--warehouse", f"s3://{bucket}/warehouse",
    )  # fmt: skip
    made = shell.json(*command)
    assert (made["action"], made["snapshots"], made["files_new"]) == ("created", 1, 1)
    assert shell.json(*command)["action"] == "unchanged"
    assert made["metadata_location"].startswith(f"s3://{bucket}/warehouse-replica/sales/orders/metadata/")
    settings = load_settings(environ=shell.environment(), folder=shell.folder)
    settings = embed_catalog(settings, "cloud_catalog", f"s3://{bucket}/warehouse-replica")
    table = open_catalog(settings.catalog("cloud_catalog"), settings.model.network).load_table("sales.orders")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2]
    options = ["--catalog", "cloud_catalog", "--warehouse", f"s3://{bucket}/warehouse-replica"]
    assert shell.json("replica", "verify", *options)[0]["sound"]
