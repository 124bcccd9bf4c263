"""A home folder that cannot be written, that is a file, or whose disk is full: one clear error, wherever it is met."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Shell
from tests.e2e.unprivileged import drop_file_rights
from tests.small_disk import small_disk

_PORTS = ("--set", "serve.http_port=0", "--set", "serve.flight_port=0")
#: What creates something in the home folder when it is first used, each by a way of its own.
COMMANDS = [("topic", "create", "orders"), ("content", "scan", "."), ("up", *_PORTS)]
MORE_COMMANDS = [
    ("topic", "publish", "orders", "a message"), ("topic", "list"), ("table", "list"), ("content", "watch", "."),
    ("content", "ingest", "-"), ("content", "list", "photos"), ("content", "tag", "photos", "a.jpg", "--add", "b"),
    ("content", "extract"), ("serve", *_PORTS), ("pipeline",), ("sql", "SELECT * FROM a.b"), ("upkeep", "status"),
]  # fmt: skip
EACH_COMMAND = [*COMMANDS, *(pytest.param(args, marks=pytest.mark.deep) for args in MORE_COMMANDS)]


def fails_clearly(shell: Shell, args: tuple[str, ...], home: str, code: int) -> None:
    done = shell.run(*args, "-o", "json", "--set", f"home={home}", stdin="{}", preexec_fn=drop_file_rights)
    assert done.returncode == code, f"{args}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    error = json.loads(done.stderr.strip().splitlines()[-1])
    told = f"{error['message']} {error['cause']}"
    assert home in told and error["hint"], (args, error)
    assert "unexpected" not in told and "report it" not in error["hint"], (args, error)


@pytest.mark.parametrize("args", EACH_COMMAND, ids=" ".join)
def test_a_home_that_cannot_be_written_is_named(shell, args):
    home = shell.folder / "read-only"
    home.mkdir(mode=0o555)
    fails_clearly(shell, args, str(home), 12)


@pytest.mark.deep
@pytest.mark.parametrize("args", [*COMMANDS, *MORE_COMMANDS], ids=" ".join)
def test_a_home_that_is_a_file_is_named(shell, args):
    fails_clearly(shell, args, str(shell.write("home.txt", "a file")), 12)


def test_the_doctor_says_of_each_check_what_cannot_be_written(shell):
    home = shell.folder / "read-only"
    home.mkdir(mode=0o555)
    args = ("doctor", "--no-spark", "-o", "json", "--set", f"home={home}")
    done = shell.run(*args, preexec_fn=drop_file_rights)
    failed = {check["name"]: check for check in json.loads(done.stdout)["checks"] if not check["ok"]}
    assert done.returncode == 1 and {"catalog", "log"} <= set(failed)
    for check in failed.values():
        assert str(home) in check["detail"] and "report it" not in check["hint"], check


@pytest.mark.deep
def test_a_full_disk_is_named(shell):
    with small_disk("1m") as disk:
        (disk / "filler").write_bytes(bytes(1024 * 1024 - 4096))
        for args in COMMANDS:
            fails_clearly(shell, args, str(disk), 1)
