"""Standard output that breaks: a reader that has enough, a full disk, a terminal that is not UTF-8."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FRAZIL = [sys.executable, "-m", "frazil"]
FEW = ["sql", "SELECT * FROM range(3)", "--engine", "duckdb", "-o", "csv"]
MANY = ["sql", "SELECT * FROM range(300000)", "--engine", "duckdb", "-o", "csv"]  # 2 MB, more than a pipe holds
HELP = ["--help"]

SOCKET_BREAKS = """
import frazil.query, frazil.__main__
def run_sql(*args, **kwargs):
    raise BrokenPipeError(32, "Broken pipe")
frazil.query.run_sql = run_sql
frazil.__main__.main(["sql", "DELETE FROM a.b"])
"""


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def env(request, tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONUNBUFFERED": request.param}


@pytest.mark.parametrize("args", [MANY, [*MANY, "--out", "/dev/stdout"], [*MANY[:4], "--limit", "300000"]])
def test_a_reader_that_has_enough_is_no_error(env, tmp_path, args):
    with subprocess.Popen(
        [*FRAZIL, *args], env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"range\n"
        process.stdout.close()
        told = process.stderr.read().decode()
    assert process.returncode == 0
    assert told == "" or ("--out" in args and told.startswith("300000 rows"))


@pytest.mark.parametrize("args", [FEW, HELP, ["--version"], ["sql", "--help"], ["config", "show"]])
@pytest.mark.parametrize("stderr_too", [False, True])
def test_a_reader_that_never_reads_is_no_error(env, tmp_path, args, stderr_too):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*FRAZIL, *args], env=env, cwd=tmp_path, stdout=writing, stderr=writing if stderr_too else subprocess.PIPE
    )
    os.close(writing)
    assert (done.returncode, done.stderr or b"") == (0, b"")


@pytest.mark.parametrize("args", [FEW, MANY, HELP, ["--version"], ["config", "show"]])
def test_a_full_disk_is_an_error(env, tmp_path, args):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*FRAZIL, *args], env=env, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the disk is full\n") and done.stderr.count("error") == 1
    assert "Try: free some space" in done.stderr


def test_a_full_disk_is_told_as_json_where_json_was_asked_for(env, tmp_path):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*FRAZIL, "config", "show", "-o", "json"], env=env, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 1 and json.loads(done.stderr)["error"] == "UnavailableError"


def test_a_disk_that_fills_up_within_one_write_is_an_error(env, tmp_path):
    """The first part of the rows fits: the write succeeds in part, and only the next one fails."""
    limited = ["/bin/bash", "-c", 'trap "" XFSZ; ulimit -f 100; exec "$@" > rows.csv', "-", *FRAZIL, *MANY]
    done = subprocess.run(limited, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "File too large" in done.stderr


def test_a_closed_standard_output_is_no_reason_to_crash(env, tmp_path):
    command = ["/bin/bash", "-c", '"$@" >&-', "-", *FRAZIL, "--help"]
    done = subprocess.run(command, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_connection_that_breaks_is_an_error(env, tmp_path):
    done = subprocess.run([sys.executable, "-c", SOCKET_BREAKS], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "BrokenPipeError" in done.stderr


def test_a_terminal_that_is_not_utf_8_shows_what_it_can(env, tmp_path):
    query = ["sql", "SELECT '✓ ü' AS x", "--engine", "duckdb"]
    env |= {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "1"}
    done = subprocess.run([*FRAZIL, *query], env=env, cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stdout.decode("latin-1")) == (0, "x\n? ü\n")


def test_json_is_whole_on_a_terminal_that_is_not_utf_8(env, tmp_path):
    (tmp_path / "frazil.yaml").write_text("topics: {namespace: ✓}")
    env |= {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(
        [*FRAZIL, "config", "show", "topics", "-o", "json"], env=env, cwd=tmp_path, capture_output=True
    )
    assert json.loads(done.stdout)[0]["value"] == "✓"
