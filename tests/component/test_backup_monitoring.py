"""Monitoring of backups: what `frazil backup run` writes is what the alert rules read, and the units start it."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import stat
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from frazil.backup.metrics import PolicyMetrics, read_metrics, write_metrics
from tests.services.promtool import install_promtool

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "frazil-backup.rules.yml"
ENDED = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def written(folder: Path, **policies: PolicyMetrics) -> Path:
    file = folder / "textfile" / "frazil.prom"
    write_metrics(file, policies, ENDED)
    return file


def test_the_alerts_fire_when_they_should_and_only_then():
    folder = RULES.parent
    done = subprocess.run(
        [install_promtool(), "test", "rules", "frazil-backup.test.yml"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]} == set(
        re.findall(r"alertname: (\w+)\n", (folder / "frazil-backup.test.yml").read_text())
    )


def test_the_alerts_read_metrics_that_are_written(tmp_path: Path):
    there = set(re.findall(r"^(frazil_\w+)", written(tmp_path, nightly=PolicyMetrics()).read_text(), re.MULTILINE))
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    used = set(re.findall(r"frazil_backup_\w+", " ".join(rule["expr"] for rule in rules)))
    assert used
    assert used <= there


def test_promtool_accepts_the_metrics(tmp_path: Path):
    metrics = written(tmp_path, nightly=PolicyMetrics(bytes=5e9, failures=1), hourly=PolicyMetrics())
    done = subprocess.run(
        [install_promtool(), "check", "metrics"], stdin=metrics.open(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_metrics_are_read_back_and_any_user_may_read_them(tmp_path: Path):
    nightly = PolicyMetrics(last_success_timestamp_seconds=1.7e9, bytes=5e9, failures=2)
    file = written(tmp_path, nightly=nightly)
    assert read_metrics(file) == {"nightly": nightly}
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    write_metrics(file, {}, ENDED)
    assert read_metrics(file) == {}, "a policy that was removed leaves no metrics"


@pytest.mark.parametrize("content", ["", "nothing of ours 1\n", "{{{", 'frazil_backup_bytes{policy="a"} x\n'])
def test_a_damaged_metrics_file_counts_as_none(tmp_path: Path, content: str):
    file = tmp_path / "frazil.prom"
    file.write_text(content)
    assert read_metrics(file) == {}
    assert read_metrics(tmp_path / "missing.prom") == {}


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / "systemd" / name).read_text())
    return parser


def test_the_unit_runs_a_command_that_exists():
    from tests.unit.test_docs import parse

    program, *words = shlex.split(unit("frazil-backup.service")["Service"]["ExecStart"])
    assert Path(program).name == "frazil"
    assert words[:2] == ["backup", "run"]
    parse(["frazil", *words])


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="this machine has no systemd")
def test_systemd_accepts_the_units(tmp_path: Path):
    for file in (DEPLOY / "systemd").iterdir():  # the program is not installed where the tests run
        (tmp_path / file.name).write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", file.read_text()))
    done = subprocess.run(
        ["systemd-analyze", "verify", *sorted(tmp_path.iterdir())], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr.strip()
