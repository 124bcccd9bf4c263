"""Monitoring of replicas: what `frazil replica run` writes is what the alert rules read, and the examples work."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from frazil.errors import NotFoundError
from frazil.replica.config import ReplicaConfig, list_configs
from frazil.replica.many import ReplicaRun, measure_run
from frazil.replica.metrics import ReplicaMetrics, read_metrics, write_metrics
from frazil.replica.report import SyncReport
from frazil.settings import load_settings
from tests.component.test_backup_monitoring import unit
from tests.replica_kit import Replication, open_primary
from tests.services.promtool import install_promtool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "frazil-replica.rules.yml"
EXAMPLES = ROOT / "examples" / "replica"
NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
CONFIG = ReplicaConfig("prod.orders", "frazil", "/dr", "/replica", max_lag_s=60)


def test_the_alerts_fire_when_they_should_and_only_then():
    done = subprocess.run(
        [install_promtool(), "test", "rules", "frazil-replica.test.yml"],
        cwd=RULES.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    tested = (RULES.parent / "frazil-replica.test.yml").read_text()
    alerts = {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    assert alerts == set(re.findall(r"alertname: (\w+)\n", tested))


def test_the_alerts_read_metrics_that_are_written(tmp_path: Path):
    file = tmp_path / "frazil.prom"
    write_metrics(file, {"prod.orders": ReplicaMetrics(lag_seconds=5.0)}, NOW)
    there = set(re.findall(r"^(frazil_\w+)", file.read_text(), re.MULTILINE))
    used = set(
        re.findall(
            r"frazil_replica_\w+", " ".join(r["expr"] for r in yaml.safe_load(RULES.read_text())["groups"][0]["rules"])
        )
    )
    assert used and used <= there
    assert read_metrics(file) == {"prod.orders": ReplicaMetrics(lag_seconds=5.0)}


def test_metrics_say_how_far_a_replica_is_behind_and_since_when_it_fails():
    since = int((NOW - timedelta(seconds=90)).timestamp() * 1000)
    report = SyncReport(
        "prod.orders", "waiting", None, 3, witnessed=True, missing=("a", "b"), served_ms=since - 1000,
        waiting_since_ms=since, lag_snapshots=2,
    )  # fmt: skip
    found = measure_run(ReplicaRun(CONFIG, report), None, NOW)
    assert (found.lag_seconds, found.lag_snapshots, found.missing_files, found.max_lag_seconds) == (90, 2, 2, 60)
    assert found.last_success_timestamp_seconds == NOW.timestamp()
    later = NOW + timedelta(minutes=5)
    failed = measure_run(ReplicaRun(CONFIG, error=NotFoundError("gone")), found, later)
    assert (failed.failures, failed.last_success_timestamp_seconds) == (1, NOW.timestamp())
    assert failed.last_attempt_timestamp_seconds == later.timestamp()
    current = measure_run(ReplicaRun(CONFIG, replace(report, waiting_since_ms=None)), failed, later)
    assert (current.lag_seconds, current.failures) == (0, 0)


def test_the_unit_and_the_cron_example_run_commands_that_exist():
    from tests.unit.test_docs import parse

    program, *words = shlex.split(unit("frazil-replica.service")["Service"]["ExecStart"])
    assert Path(program).name == "frazil" and words[:2] == ["replica", "run"]
    parse(["frazil", *words])
    (line,) = [text for text in (EXAMPLES / "frazil-replica.cron").read_text().splitlines() if text.startswith("*/5")]
    parse(["frazil", *shlex.split(line.partition("bin/frazil ")[2].partition(" >>")[0])])


def test_the_settings_of_the_example_are_complete():
    settings = load_settings(config=EXAMPLES / "frazil.yaml", environ={})
    configs = {config.name: config for config in list_configs(settings)}
    assert configs["sales.orders"].source_prefixes[1] == ("s3://prod-imports", "s3://dr-bucket/imports")
    assert (configs["logs.requests"].mode, configs["logs.requests"].partition) == ("data-files", ("day(ts)",))
    assert configs["logs.requests"].compact and not configs["sales.orders"].compact
    assert configs["prod.customers"].witnessed_only and not configs["prod.transactions"].witnessed_only
    assert configs["prod.transactions"].max_lag_s == 300


@pytest.mark.parametrize("example", ["simple_sync.py", "batch_sync.py"])
def test_the_examples_run(tmp_path: Path, example: str):
    with open_primary(tmp_path) as primary:
        primary.create("prod.orders")
        Replication(primary.warehouse, tmp_path / "dr").run()
    (tmp_path / "frazil.yaml").write_text(
        "home: ./home-dr\nreplica: {replicated_path: ./dr, tables: {prod.orders: {max_lag_s: 60}}}\n"
    )
    given = ["prod.orders", "dr", "replica"] if example == "simple_sync.py" else ["frazil.yaml"]
    done = subprocess.run(
        [sys.executable, EXAMPLES / example, *given], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "prod.orders: created, version 1" in done.stdout
