"""Preparing a checkout, and preparing it again after something broke."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[2] / "tools" / "bootstrap.py"


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, in an empty checkout."""
    spec = importlib.util.spec_from_file_location("bootstrap", SOURCE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    bin_folder = tmp_path / ".venv" / "bin"
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    for name in ("python", "uv", "frazil"):
        monkeypatch.setattr(module, name.upper(), bin_folder / name)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "dev.txt").write_text("x")
    (tmp_path / "requirements" / "runtime.txt").write_text("y")
    (tmp_path / "pyproject.toml").write_text("z")
    return module


def program(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def with_python(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Runs the program as if under this Python."""
    monkeypatch.setattr(bootstrap.sys, "executable", str(program(bootstrap.ROOT / "python", text)))


def test_an_environment_without_its_packages_is_made_anew(bootstrap, monkeypatch):
    assert not bootstrap.has_environment()
    venv.create(bootstrap.VENV)
    [packages] = (bootstrap.VENV / "lib").glob("python*/site-packages")
    (packages / "pip.py").touch()
    assert bootstrap.has_environment()
    shutil.rmtree(packages)
    assert not bootstrap.has_environment()
    bootstrap.stamp("dev").touch()
    with_python(bootstrap, monkeypatch, 'mkdir "$3"')
    bootstrap.make_environment()
    assert not list(bootstrap.VENV.iterdir()), "what says that packages were installed into it is gone with them"


def test_an_environment_of_another_python_is_made_anew(bootstrap):
    program(bootstrap.PYTHON, f"echo {sys.version_info[0]} {sys.version_info[1] + 1}")
    assert not bootstrap.has_environment()
    program(bootstrap.PYTHON, f"echo {sys.version_info[0]} {sys.version_info[1]}")
    assert bootstrap.has_environment()


def test_dependencies_count_as_installed_only_if_they_answer(bootstrap):
    program(bootstrap.FRAZIL, "exit 0")
    assert not bootstrap.has_dependencies("runtime")
    bootstrap.stamp("dev").write_text(bootstrap.state_of("dev"))
    assert bootstrap.has_dependencies("dev")
    assert bootstrap.has_dependencies("runtime"), "dev has all of them"
    program(bootstrap.FRAZIL, "echo ModuleNotFoundError >&2; exit 1")
    assert not bootstrap.has_dependencies("runtime")


def test_the_real_reason_why_there_is_no_environment_is_told(bootstrap, monkeypatch):
    with_python(bootstrap, monkeypatch, "echo 'Error: [Errno 28] No space left on device' >&2; exit 1")
    with pytest.raises(SystemExit, match="No space left on device") as error:
        bootstrap.make_environment()
    assert "apt-get" not in str(error.value)


@pytest.mark.parametrize("debian", [True, False])
def test_apt_is_suggested_only_on_debian(bootstrap, monkeypatch, debian):
    with_python(bootstrap, monkeypatch, "printf 'not created because ensurepip is not\navailable.'; exit 1")
    monkeypatch.setattr(bootstrap, "DEBIAN", bootstrap.ROOT if debian else bootstrap.ROOT / "none")
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as error:
        bootstrap.make_environment()
    assert ("sudo apt-get install" in str(error.value)) is debian
    assert ("with your package manager" in str(error.value)) is not debian


def test_a_step_is_announced_before_it_begins_and_not_at_all_when_done(bootstrap, capsys):
    said: list[str] = []
    bootstrap.step("digging", lambda: False, lambda: said.append(capsys.readouterr().out))
    assert said == ["bootstrap: digging …\n"]
    capsys.readouterr()
    bootstrap.step("digging", lambda: True, lambda: said.append("worked"))
    assert capsys.readouterr().out == ""
    assert len(said) == 1


def test_what_setup_says_is_seen_while_it_works(bootstrap, capfd):
    program(bootstrap.FRAZIL, "echo 'fetching 9 jars' >&2; echo a table")
    bootstrap.prepare_machine()
    assert capfd.readouterr() == ("", "fetching 9 jars\n")
    program(bootstrap.FRAZIL, "echo 'error: no network' >&2; exit 1")
    with pytest.raises(SystemExit) as error:
        bootstrap.prepare_machine()
    assert error.value.code == 1


def test_it_needs_nothing_but_the_standard_library():
    code = f"import runpy; runpy.run_path({str(SOURCE)!r}, run_name='bootstrap')"
    subprocess.run([sys.executable, "-S", "-I", "-c", code], check=True)
