"""`frazil docs` as a person runs it: pipes, the whole way to Iceberg, and a kill in the middle of an import."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import FRAZIL


@pytest.mark.deep
def test_documents_go_from_a_file_through_a_pipe_to_iceberg(shell):
    rows = "".join(f'{{"document_id": "d{n}", "filename": "{n}.pdf", "size_bytes": {n}}}\n' for n in range(50))
    shell.write("rows.ndjson", rows)
    assert shell.json("docs", "import", "rows.ndjson")["created"] == 50
    made = shell.json("docs", "update", "d7", "--set", "storage_tier=archive", "--if-match", "1")
    assert made["revision"] == 2
    shell.run("docs", "delete", "d8")

    planned = shell.run("docs", "migrate", "--from", "sqlite", "--to", "iceberg")
    assert planned.returncode == 2
    assert "--yes" in planned.stderr
    done = shell.json("docs", "migrate", "--from", "sqlite", "--to", "iceberg", "--yes")
    assert done["verified"]["documents"]["count"] == 49
    assert done["verified"]["revisions"]["count"] == 52

    iceberg = {"DATABASE_URL": "iceberg"}
    assert shell.json("docs", "stats", env=iceberg) == shell.json("docs", "stats")
    assert [r["operation"] for r in shell.json("docs", "history", "d8", env=iceberg)] == ["put", "delete"]
    exported = shell.run("docs", "export", "-", "--format", "csv", "--history", env=iceberg)
    assert exported.returncode == 0
    other = {"DATABASE_URL": f"sqlite:///{shell.folder / 'other.db'}"}
    back = shell.run("docs", "import", "-", "--format", "csv", env=other, stdin=exported.stdout)
    assert back.stdout == "50 created, 0 replaced, 0 unchanged\n", "also the deleted one, with its history"
    assert shell.json("docs", "stats", env=other) == shell.json("docs", "stats")
    verified = shell.run("docs", "verify", env=iceberg)
    assert (verified.returncode, verified.stdout.splitlines()[-1]) == (0, "sound")


def test_head_ends_an_export_without_an_error(shell):
    shell.write("rows.ndjson", "".join(f'{{"filename": "{n}{"x" * 500}.pdf"}}\n' for n in range(2000)))
    shell.run("docs", "import", "rows.ndjson")
    for command in (["export", "-", "--format", "ndjson"], ["list", "--all"]):
        line = f"{FRAZIL} docs {' '.join(command)} | head -n 2"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            env=shell.environment(),
            cwd=shell.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        assert len(done.stdout.splitlines()) == 2


def count_documents(file: Path) -> int:
    """Reads the file itself: a command would wait for the import."""
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=10)) as connection:
        return int(connection.execute("SELECT count(*) FROM documents").fetchone()[0])


@pytest.mark.long("imports 60,000 documents, is killed, and imports them again")
@pytest.mark.deep
@pytest.mark.parametrize("database", ["sqlite", "iceberg"])
def test_an_import_that_is_killed_is_finished_by_its_repetition(shell, database: str):
    count = 60_000
    shell.write("rows.ndjson", "".join(f'{{"document_id": "d{n}", "filename": "{n}"}}\n' for n in range(count)))
    home = shell.folder / "lake"
    env = {"FRAZIL_HOME": str(home), **({"DATABASE_URL": "iceberg"} if database == "iceberg" else {})}
    shell.json("docs", "stats", env=env)
    command = [FRAZIL, "docs", "import", "rows.ndjson"]
    running = subprocess.Popen(command, env=shell.environment(env), cwd=shell.folder, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    file = home / ("documents/projection.db" if database == "iceberg" else "documents.db")
    while time.monotonic() < deadline and running.poll() is None and not count_documents(file):
        time.sleep(0.01)
    running.kill()
    assert running.wait() == -9, "it was too quick to be killed in the middle"
    before = shell.json("docs", "stats", env=env)["total_documents"]
    assert 0 < before < count
    assert before % 20_000 == 0, "each part appears whole or not at all"
    report = shell.json("docs", "import", "rows.ndjson", env=env)
    assert (report["created"], report["unchanged"]) == (count - before, before)
    verified = json.loads(shell.run("docs", "verify", "--output", "json", env=env).stdout)
    assert (verified["documents"], verified["revisions"], verified["sound"]) == (count, count, True)
