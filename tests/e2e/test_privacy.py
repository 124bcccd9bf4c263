"""Other users of the machine cannot read what Frazil keeps in files of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Shell
from tests.e2e.servers import serving


def rights(top: Path) -> dict[str, str]:
    """Of all files and folders on which anybody but the owner has rights, the mode."""
    found = {str(path.relative_to(top)): oct(path.lstat().st_mode & 0o777) for path in (top, *top.rglob("*"))}
    return {name: mode for name, mode in found.items() if not mode.endswith("00")}


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    base = tmp_path_factory.mktemp("privacy")
    base.chmod(0o755)
    for name in ("home", "work"):
        (base / name).mkdir()
    return Shell(base / "work", base / "home")


@pytest.fixture(scope="module")
def kept(shell: Shell) -> Path:
    """The home of a server that took messages and of a catalog that was opened, as the user's umask of 022 allows."""
    with serving(shell) as server:
        server.create("orders")
        server.publish("orders", "a secret")
    shell.json("table", "list")
    return shell.home / ".local/share/frazil"


def test_log_catalog_and_home_are_for_their_owner_only(shell, kept):
    assert (kept / "catalog.db").exists() and list((kept / "log").rglob("*.seg"))
    shared = {name: mode for name, mode in rights(kept).items() if not name.startswith("warehouse")}
    assert shared == {}
    assert kept.stat().st_mode & 0o777 == 0o700


def test_what_an_older_version_left_readable_is_found_by_the_doctor_and_closed_at_the_next_start(shell, kept):
    for path in (kept, *kept.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    elsewhere = kept.rename(shell.home / "elsewhere")
    report = shell.run("doctor", "--no-spark", "--set", f"home={elsewhere}", "-o", "json")
    assert '"name": "privacy", "ok": false' in report.stdout and f"chmod -R go-rwx {elsewhere}" in report.stdout
    shell.run("topic", "publish", "orders", "more", "--set", f"home={elsewhere}")
    assert rights(elsewhere / "log") == {} and rights(elsewhere / "catalog.db") == {}
    assert elsewhere.stat().st_mode & 0o777 == 0o755, "a folder that the user chose is the user's to close"
    elsewhere.rename(kept)
    report = shell.json("doctor", "--no-spark")
    assert kept.stat().st_mode & 0o777 == 0o700 and all(check["ok"] for check in report["checks"])
