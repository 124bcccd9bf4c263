"""The `frazil` command as a person runs it: a process of its own, in a folder of its own."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.traps import lay_traps
from tests.machine import machine_environment

FRAZIL = Path(sys.executable).with_name("frazil")
OFFLINE = Path(__file__).resolve().parents[1] / "offline.py"
_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "JAVA_HOME")


@dataclass
class Shell:
    """A user's shell: an empty home folder, no foreign settings, and the jars that the machine already has."""

    folder: Path
    home: Path
    env: dict[str, str] = field(default_factory=dict)

    def environment(self, more: dict[str, str] | None = None) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        own = {"HOME": str(self.home), **machine_environment(), "COLUMNS": "200"}
        return {**kept, **own, **self.env, **(more or {})}

    def run(
        self,
        *args: str,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str | None = None,
        timeout: float = 180,
        preexec_fn: Callable[[], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [FRAZIL, *args],
            env=self.environment(env),
            cwd=cwd or self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            preexec_fn=preexec_fn,
        )

    def json(self, *args: str, **kwargs: Any) -> Any:
        done = self.run(*args, "--output", "json", **kwargs)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    return Shell(tmp_path / "work", tmp_path / "home")


@pytest.fixture(scope="session")
def demo_shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell in whose folder the demo has run, with the network cut, once for all workers; tests only read there."""
    run_folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run_folder = run_folder.parent
    base = run_folder / "demo"
    with (run_folder / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "demo.pid").exists():
            _run_demo(base)
    return Shell(base / "work" / "frazil-demo", base / "home")


def _run_demo(base: Path) -> None:
    (base / "home").mkdir(parents=True)
    (base / "work").mkdir()
    shell = Shell(base / "work", base / "home")
    lay_traps(shell.folder)
    demo = subprocess.Popen(
        [sys.executable, OFFLINE, FRAZIL, "demo"],
        env=shell.environment(),
        cwd=shell.folder,
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, errors = demo.communicate(timeout=420)
    assert demo.returncode == 0, errors
    (base / "demo.out").write_text(out)
    (base / "demo.pid").write_text(str(demo.pid))


def fingerprint(folder: Path) -> dict[str, str]:
    """Every folder and file below with its content's hash: equal before and after means that nothing was changed."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if not path.name.endswith(("-shm", "-wal"))  # SQLite's own, in use by readers too
    }
