"""What every command has in common."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess

import pytest

from frazil import __version__
from frazil.__main__ import COMMANDS
from tests.e2e.conftest import FRAZIL

SUBCOMMANDS = {
    "config": ("show", "check"),
    "table": (
        "list", "show", "snapshots", "files", "history", "health", "expire", "orphans", "verify", "pins", "compact",
        "manifests", "stats",
    ),
    "topic": (
        "create", "list", "show", "publish", "tail", "replay", "migrate", "retain", "adopt", "delete", "verify",
    ),
    "content": (
        "ingest", "list", "show", "history", "stats", "views", "scan", "extract", "reconcile", "watch", "tag",
        "note", "erase", "fields", "backfill", "search", "facets", "duplicates", "export",
    ),
    "upkeep": ("plan", "run", "status", "history"),
    "docs": (
        "put", "get", "list", "update", "delete", "undelete", "history", "stats", "import", "export", "migrate",
        "verify", "add", "fetch", "restore-request",
    ),
    "setup": ("", "bucket"),
    "backup": (
        "create", "list", "show", "diff", "restore", "rollback", "verify", "prune", "delete", "run", "erase",
    ),
    "replica": ("sync", "plan", "run", "status", "history", "verify", "failover", "beacon"),
}  # fmt: skip
PAGES = [(c, s) for c in COMMANDS for s in SUBCOMMANDS.get(c, ("",))]
GROUPS = [(c, "") for c in SUBCOMMANDS]


def test_the_version_is_printed(shell):
    assert shell.run("--version").stdout == f"frazil {__version__}\n"


def test_help_names_every_command(shell):
    shown = shell.run("--help").stdout
    assert all(re.search(rf"^  {name} ", shown, re.MULTILINE) for name in COMMANDS)


def test_version_and_help_load_nothing_heavy(shell):
    """They answer at once; what takes time to import is imported by the commands that need it."""
    for option in ("--version", "--help"):
        done = subprocess.run(
            [FRAZIL.with_name("python"), "-X", "importtime", "-m", "frazil", option],
            env=shell.environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
        assert not imported & {"typer", "rich", "pydantic", "pyspark", "pyiceberg", "duckdb", "pyarrow", "yaml"}


@pytest.mark.parametrize(("name", "sub"), PAGES + GROUPS, ids=lambda part: part or "-")
def test_each_help_page_ends_with_an_example(shell, name, sub):
    done = shell.run(name, *([sub] if sub else []), "--help")
    assert done.returncode == 0
    assert re.search(rf"Example: frazil {name}", done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize(("name", "sub"), PAGES, ids=lambda part: part or "-")
def test_each_command_offers_json(shell, name, sub):
    shown = shell.run(name, *([sub] if sub else []), "--help").stdout
    assert re.search(r"--output .*json", shown)


def test_an_unknown_command_names_the_nearest(shell):
    done = shell.run("tabel", "list")
    assert done.returncode == 2 and "Try: frazil table" in done.stderr and done.stdout == ""


def test_a_wrong_option_is_a_usage_error(shell):
    done = shell.run("table", "list", "--nix")
    assert done.returncode == 2 and "--nix" in done.stderr


def test_common_options_may_stand_before_the_command(shell):
    first = shell.run("--output", "json", "config", "check")
    assert first.returncode == 0 and json.loads(first.stdout)["valid"] is True


def test_errors_are_json_where_json_was_asked_for(shell):
    done = shell.run("table", "show", "no.table", "--output", "json")
    assert done.returncode == 10 and done.stdout == ""
    assert json.loads(done.stderr)["error"] == "NotFoundError"


def test_a_reader_that_has_enough_is_no_error(shell):
    query = "SELECT * FROM range(300000)"  # 2 MB, more than a pipe holds
    command = f"{FRAZIL} sql '{query}' --engine duckdb -o csv | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=shell.folder,
        env=shell.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("range\n0\n", "")


@pytest.mark.timeout(600)  # alone, it has to run the demo first
def test_on_a_terminal_rows_are_paged(demo_shell):
    """A real terminal: what does not fit the screen goes through the pager that the user has chosen."""
    mark = demo_shell.home / "paged"
    pager = demo_shell.home / "pager.sh"
    pager.write_text(f"#!/bin/sh\ncat > {mark}\n")
    pager.chmod(0o755)
    leader, follower = pty.openpty()
    env = demo_shell.environment({"PAGER": str(pager), "LINES": "20", "TERM": "xterm"})
    command = [FRAZIL, "sql", "SELECT id FROM demo.photos ORDER BY id LIMIT 200"]
    process = subprocess.Popen(
        command, cwd=demo_shell.folder, env=env, stdout=follower, stderr=subprocess.DEVNULL, stdin=follower
    )
    os.close(follower)
    try:
        while os.read(leader, 4096):
            pass
    except OSError:  # Linux's way to say that the other side is closed
        pass
    assert process.wait(60) == 0
    assert mark.exists() and "199" in mark.read_text()
