"""Calls that are wrong: the error names what is wrong, and help that is about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import structlog

from frazil.__main__ import COMMANDS
from frazil.cli.run import run_command


@pytest.fixture
def call(tmp_path, monkeypatch, capfd) -> Iterator[Callable[..., tuple[int, str, str]]]:
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run_command(args[0], COMMANDS[args[0]][0], list(args[1:]))
        return code, *capfd.readouterr()

    yield run
    structlog.reset_defaults()


@pytest.mark.parametrize(
    "name", ["topic", "content", "table", "upkeep", "config", ("topic", "dead-letters")], ids=lambda name: str(name)
)
def test_a_group_alone_shows_its_help_and_no_error(call, name):
    code, out, errors = call(*((name,) if isinstance(name, str) else name))
    assert (code, errors) == (0, "")
    assert out.startswith("Usage: frazil") and "Commands:" in out


@pytest.mark.parametrize(
    ("args", "says", "hint"),
    [
        (("topic", "publish"), "Missing argument 'TOPIC'", "frazil topic publish --help"),
        (("content", "show", "."), "Missing argument 'KEY'", "frazil content show --help"),
        (("topic", "tail", "a", "-n", "x"), "'-n'", "frazil topic tail --help"),
        (
            ("topic", "create", "a", "--storage", "b"),
            "'b' is not one of 'iceberg', 'log'",
            "frazil topic create --help",
        ),
        (("topic", "nope"), "nope", "frazil topic --help"),
        (("topic", "dead-letters", "list", "--nope"), "--nope", "frazil topic dead-letters list --help"),
    ],
)
def test_a_wrong_call_names_the_help_of_its_command(call, args, says, hint):
    code, out, errors = call(*args, "--output", "json")
    told = json.loads(errors)
    assert (code, out, told["hint"]) == (2, "", hint)
    assert says in told["message"] and "Value error" not in told["message"]


def test_a_file_in_place_of_a_folder_is_told(call, tmp_path):
    (tmp_path / "events.json").write_text("{}")
    code, _, errors = call("content", "scan", "events.json")
    assert code == 2 and "'events.json' is a file" in errors and "s3://events.json" in errors


def test_a_misspelt_folder_is_told_from_a_bucket(call):
    away = ("--set", "s3.endpoint=http://127.0.0.1:9", "--set", "s3.access_key=a", "--set", "s3.secret_key=b")
    code, _, errors = call("content", "scan", "fotos", *away, "--set", "network.retry_attempts=1")
    assert code == 1 and "there is no folder 'fotos' here" in errors
