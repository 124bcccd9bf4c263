"""`frazil doctor` tells what is well and what is not, and what to do."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(300)


def test_a_healthy_machine_is_ok_line_by_line(shell):
    done = shell.run("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines] == [
        "python", "java", "jars", "catalog", "storage", "backups", "disk", "log", "privacy", "clock", "spark",
    ]  # fmt: skip
    assert all(line.startswith("ok") for line in lines)


def test_the_json_twin_says_the_same(shell):
    report = shell.json("doctor", "--no-spark")
    assert report["ok"] is True
    assert set(report["checks"][0]) == {"name", "ok", "detail", "hint", "seconds"}
    assert [c["name"] for c in report["checks"]] == [
        "python",
        "java",
        "jars",
        "catalog",
        "storage",
        "backups",
        "disk",
        "log",
        "privacy",
        "clock",
    ]


def test_the_doctor_leaves_nothing_behind_in_the_warehouse(shell):
    shell.json("doctor", "--no-spark")
    warehouse = shell.home / ".local/share/frazil/warehouse"
    assert warehouse.is_dir() and list(warehouse.iterdir()) == []


def test_one_failure_does_not_hide_the_others(shell):
    (shell.folder / "file").write_text("in the way")
    done = shell.run(
        "doctor", "--no-spark", "--set", f"home={shell.folder}/file/home", "--set", f"cache={shell.folder}/no-cache"
    )
    assert done.returncode == 1
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("failed")]
    assert failed == ["jars", "catalog", "storage", "backups", "log"]
    assert done.stdout.count("Try:") == len(failed)
    assert "frazil setup" in done.stdout
