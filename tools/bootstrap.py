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
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
FRAZIL = VENV / "bin" / "frazil"
DEBIAN = Path("/etc/debian_version")
OLDEST = (3, 11)


def main() -> None:
    profile = "dev" if "--dev" in sys.argv else "runtime"
    if sys.version_info < OLDEST:
        fail(
            f"this is Python {sys.version.split()[0]}; Frazil needs {OLDEST[0]}.{OLDEST[1]} or newer",
            "make PYTHON=python3.12 …",
        )
    step("virtual environment", has_environment, make_environment)
    step("uv", has_uv, install_uv)
    step(f"locked dependencies ({profile})", lambda: has_dependencies(profile), lambda: install_dependencies(profile))
    prepare_machine()


def step(name: str, is_done: Callable[[], bool], work: Callable[[], None]) -> None:
    if is_done():
        return
    print(f"bootstrap: {name} …", flush=True)
    began = time.monotonic()
    work()
    print(f"bootstrap: {name}: {time.monotonic() - began:.0f} s", flush=True)


def fail(message: str, hint: str) -> NoReturn:
    sys.exit(f"error: {message}\n  Try: {hint}")


def run(command: list[str]) -> None:
    code, output = outcome(command)
    if code != 0:
        sys.exit(f"error: '{' '.join(command)}' failed\n{output[-4000:]}")


def outcome(command: list[str]) -> tuple[int, str]:
    """The exit code of a command, and all that it printed."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout


def has_environment() -> bool:
    """Whether .venv runs, on the version of Python that runs this, and still has its packages (pip is the first)."""
    code, output = outcome([str(PYTHON), "-c", "import sys, pip; print(*sys.version_info[:2])"])
    return code == 0 and output.split() == [str(number) for number in sys.version_info[:2]]


def make_environment() -> None:
    shutil.rmtree(VENV, ignore_errors=True)
    command = [sys.executable, "-m", "venv", str(VENV)]
    code, output = outcome(command)
    if code == 0:
        return
    shutil.rmtree(VENV, ignore_errors=True)
    said = " ".join(output.split())  # Debian breaks its line in the middle of these words
    if "ensurepip is not available" in said or "No module named venv" in said:
        install_venv_module()
    else:
        fail(f"'{' '.join(command)}' failed\n{output.strip()[-4000:]}", f"remove {VENV}, and look at the reason above")
    run(command)


def install_venv_module() -> None:
    """Debian splits it off Python."""
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    if not DEBIAN.exists():
        fail("this Python has no working venv module", "install Python's venv module with your package manager")
    if os.geteuid() != 0:
        fail("this Python has no working venv module", f"sudo apt-get install -y {package}")
    run(["apt-get", "update", "-q"])
    run(["apt-get", "install", "-y", "-q", package])


def has_uv() -> bool:
    return is_stamped("uv", uv_lock()) and outcome([str(UV), "--version"])[0] == 0


def install_uv() -> None:
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--require-hashes", "-r", "requirements/uv.txt"])
    stamp("uv").write_text(uv_lock())


def uv_lock() -> str:
    return (ROOT / "requirements" / "uv.txt").read_text()


def has_dependencies(profile: str) -> bool:
    """Whether those of this profile, or of `dev`, which has all of them, were installed and answer."""
    stamped = any(is_stamped(done, state_of(done)) for done in (profile, "dev"))
    return stamped and outcome([str(FRAZIL), "--version"])[0] == 0


def install_dependencies(profile: str) -> None:
    uv = [str(UV), "pip", "install", "--quiet", "--python", str(PYTHON)]
    run([*uv, "--require-hashes", "-r", f"requirements/{profile}.txt"])
    run([*uv, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)])
    stamp(profile).write_text(state_of(profile))


def prepare_machine() -> None:
    """Java and Spark jars. Frazil knows what is missing, and says on stderr what it does about it."""
    done = subprocess.run([str(FRAZIL), "setup"], stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)


def state_of(profile: str) -> str:
    lock = ROOT / "requirements" / f"{profile}.txt"
    return hashlib.sha256(lock.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()


def is_stamped(name: str, state: str) -> bool:
    return stamp(name).is_file() and stamp(name).read_text() == state


def stamp(name: str) -> Path:
    return VENV / f".frazil-{name}"


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
