"""The built wheel installs into an empty environment and works where no repository is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.e2e.conftest import Shell

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`uv tool install` of the wheel, with the versions of the lock; the packages come from uv's cache."""
    base = tmp_path_factory.mktemp("wheel")
    uv = find_uv_bin()
    build = [
        uv,
        "build",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--quiet",
        "-o",
        base / "dist",
        ROOT,
    ]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = (base / "dist").glob("frazil-*.whl")
    install = [
        uv,
        "tool",
        "install",
        "--quiet",
        "--python",
        sys.executable,
        "-c",
        ROOT / "requirements" / "runtime.txt",
        wheel,
    ]
    import os

    env = {**os.environ, "UV_TOOL_DIR": str(base / "tools"), "UV_TOOL_BIN_DIR": str(base / "bin")}
    offline = subprocess.run([*install, "--offline"], env=env, check=False, capture_output=True)
    if offline.returncode != 0:
        subprocess.run(install, env=env, check=True, capture_output=True)
    return base / "bin" / "frazil"


def run(shell: Shell, frazil: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [frazil, *args],
        env=shell.environment(),
        cwd=shell.folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_doctor_is_content_outside_the_repository(shell, installed):
    done = run(shell, installed, "doctor", "--output", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["ok"] is True


@pytest.mark.slow
def test_the_demo_runs_outside_the_repository(shell, installed):
    """Its first chapter, which starts Spark; all of them are played in test_demo.py."""
    done = run(shell, installed, "demo", "--chapter", "tables")
    assert done.returncode == 0, done.stderr
    assert "Try next" in done.stdout
    assert (shell.folder / "frazil-demo" / "lake" / "catalog.db").exists()


def test_the_wheel_carries_its_licence_and_nothing_of_the_tests(installed):
    [wheel] = (installed.parent.parent / "dist").glob("*.whl")
    names = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", wheel], check=True, capture_output=True, text=True
    ).stdout
    assert "licenses/LICENSE" in names
    assert "frazil/spark/jars.lock.json" in names
    assert "frazil/py.typed" in names
    assert "tests/" not in names
