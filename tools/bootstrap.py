"""Makes a checkout ready: virtual environment, uv, locked dependencies, Java, Spark jars. Standard library only.

    python3 tools/bootstrap.py            what `make demo` needs
    python3 tools/bootstrap.py --dev      and what `make test` needs

Each step is skipped when it is already done, so a second run takes a second and needs no network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
OLDEST = (3, 11)


def main() -> None:
    profile = "dev" if "--dev" in sys.argv else "runtime"
    if sys.version_info < OLDEST:
        fail(
            f"this is Python {sys.version.split()[0]}; Frazil needs {OLDEST[0]}.{OLDEST[1]} or newer",
            "make PYTHON=python3.12 …",
        )
    step("virtual environment", make_environment)
    step("uv", install_uv)
    step(f"locked dependencies ({profile})", lambda: install_dependencies(profile))
    step("Java and Spark jars", lambda: run([str(VENV / "bin" / "frazil"), "setup"]))


def step(name: str, work) -> None:  # noqa: ANN001
    began = time.monotonic()
    done = work()
    took = time.monotonic() - began
    if done is not False and took > 2:
        print(f"bootstrap: {name}: {took:.0f} s", flush=True)


def fail(message: str, hint: str) -> None:
    sys.exit(f"error: {message}\n  Try: {hint}")


def run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: '{' '.join(command)}' failed\n{done.stdout[-4000:]}")


def make_environment() -> bool:
    if PYTHON.exists() and subprocess.run([PYTHON, "-c", ""], check=False).returncode == 0:
        return False
    shutil.rmtree(VENV, ignore_errors=True)
    command = [sys.executable, "-m", "venv", str(VENV)]
    if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0:
        return True
    # Debian splits venv off Python.
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    if not (Path("/etc/debian_version").exists() and os.geteuid() == 0):
        fail("Python's venv module does not work here", f"sudo apt-get install -y {package}")
    shutil.rmtree(VENV, ignore_errors=True)
    run(["apt-get", "update", "-q"])
    run(["apt-get", "install", "-y", "-q", package])
    run(command)
    return True


def install_uv() -> bool:
    wanted = (ROOT / "requirements" / "uv.txt").read_text()
    if (VENV / "bin" / "uv").exists() and stamp("uv").exists() and stamp("uv").read_text() == wanted:
        return False
    run(
        [
            str(PYTHON),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--require-hashes",
            "-r",
            "requirements/uv.txt",
        ]
    )
    stamp("uv").write_text(wanted)
    return True


def install_dependencies(profile: str) -> bool:
    if any(stamp(done).exists() and stamp(done).read_text() == state_of(done) for done in {profile, "dev"}):
        return False
    uv = [str(VENV / "bin" / "uv"), "pip", "install", "--quiet", "--python", str(PYTHON)]
    run([*uv, "--require-hashes", "-r", f"requirements/{profile}.txt"])
    run([*uv, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)])
    stamp(profile).write_text(state_of(profile))
    return True


def state_of(profile: str) -> str:
    lock = ROOT / "requirements" / f"{profile}.txt"
    return hashlib.sha256(lock.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()


def stamp(name: str) -> Path:
    return VENV / f".frazil-{name}"


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
