"""Errors: the tree in the docstring is the truth, and each ends in words and an exit code."""

from __future__ import annotations

import json
import pickle
import re
import sys
import types
from collections.abc import Callable

import pytest

from frazil import errors
from frazil.cli.invocation import Run, command, new_app
from frazil.cli.run import run_command
from frazil.errors import FrazilError, first_line

DOCUMENTED_EXIT_CODES = {0, 1, 2, 3, 10, 11, 12, 13, 14, 130}
ERRORS = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, FrazilError)]
DRAWN = re.compile(r"^(?P<indent>[│├└─ ]*)(?P<name>[A-Z]\w+) +(?P<exit>\d+) +(?P<http>\d+)(?P<about>.*)$", re.MULTILINE)


def drawn_tree() -> dict[str, tuple[str, int, int, bool]]:
    """Of each error as drawn: its parent, exit code, HTTP status, and whether it is called retryable."""
    found: dict[str, tuple[str, int, int, bool]] = {}
    ancestors: list[str] = []
    for line in DRAWN.finditer(errors.__doc__ or ""):
        depth = len(line["indent"]) // 4
        parent = ancestors[depth - 1] if depth else "Exception"
        ancestors[depth:] = [line["name"]]
        found[line["name"]] = (parent, int(line["exit"]), int(line["http"]), "retryable" in line["about"])
    return found


def test_the_drawn_tree_is_the_tree_in_the_code():
    code = {e.__name__: (e.__base__.__name__, e.exit_code, e.http_status, e.retryable) for e in ERRORS}  # type: ignore[union-attr]
    assert drawn_tree() == code


@pytest.mark.parametrize("kind", ERRORS)
def test_every_exit_code_is_a_documented_one_and_says_failure(kind: type[FrazilError]):
    assert kind.exit_code in DOCUMENTED_EXIT_CODES - {0}


def test_every_documented_exit_code_is_in_use():
    assert {e.exit_code for e in ERRORS} == DOCUMENTED_EXIT_CODES - {0}


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_survives_the_way_from_an_executor(kind: type[FrazilError]):
    try:
        raise kind("what", hint="try this") from ValueError("why\nat java.lang.Thread")
    except FrazilError as error:
        copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == "what"
    assert copy.to_dict() == error_dict(kind)


def error_dict(kind: type[FrazilError]) -> dict[str, object]:
    return {
        "error": kind.__name__,
        "message": "what",
        "cause": "why",
        "hint": "try this",
        "exit_code": kind.exit_code,
        "retryable": kind.retryable,
    }


@pytest.mark.parametrize("kind", ERRORS)
def test_the_json_form_has_always_the_same_fields(kind: type[FrazilError]):
    assert kind("what", cause="why", hint="try this").to_dict() == error_dict(kind)
    assert kind("what").to_dict() == error_dict(kind) | {"cause": None, "hint": None}


def test_a_given_cause_goes_before_the_one_it_was_raised_from():
    error = FrazilError("what", cause="given")
    error.__cause__ = ValueError("found")
    assert error.cause == "given"


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("one\ntwo"), "one"), (ValueError("\n\n  one"), "one"), (TimeoutError(), "TimeoutError")],
)
def test_the_first_line_of_an_error_says_something(error: Exception, line: str):
    assert first_line(error) == line


def test_an_error_never_tells_a_password_that_stands_in_a_url():
    url = "mysql://root:zQ7@host/db"
    error = FrazilError(f"cannot open {url}", cause=f"{url} is away", hint=f"ping {url}")
    raised = FrazilError("what")
    raised.__cause__ = ConnectionError(f"no answer from {url}")
    assert "zQ7" not in f"{error} {error.to_dict()} {raised.to_dict()}"
    assert error.message == "cannot open mysql://root:********@host/db"


# Through the command line


@pytest.fixture
def run_raising(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs `frazil fake do`, which raises this."""

    def run(error: BaseException, *args: str) -> int:
        module = types.ModuleType("frazil.cli.fake")
        module.app = new_app("Fails.")  # type: ignore[attr-defined]

        @command(module.app, name="do", example="frazil fake do")
        def do(run: Run) -> None:
            raise error

        @command(module.app, name="other", example="frazil fake other")
        def other(run: Run) -> None:
            pass

        monkeypatch.setitem(sys.modules, "frazil.cli.fake", module)
        return run_command("fake", "fake", ["do", *args])

    return run


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_ends_in_words_and_its_exit_code(run_raising, capsys: pytest.CaptureFixture[str], kind):
    assert run_raising(kind("what", cause="why", hint="try this")) == kind.exit_code
    printed = capsys.readouterr()
    assert printed.err == "error: what\n  why: why\n  Try: try this\n"
    assert printed.out == ""


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("args", [("--output", "json"), ("-o", "json"), ("--output=json",)])
def test_an_error_ends_in_one_line_of_json_where_json_is_wanted(run_raising, capsys, kind, args: tuple[str, ...]):
    assert run_raising(kind("what", cause="why", hint="try this"), *args) == kind.exit_code
    printed = capsys.readouterr()
    assert json.loads(printed.err) == error_dict(kind)
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_an_error_without_cause_and_hint_is_one_line(run_raising, capsys):
    run_raising(FrazilError("what"))
    assert capsys.readouterr().err == "error: what\n"


@pytest.mark.parametrize("error", [FrazilError("what"), RuntimeError("what")])
def test_a_stack_trace_appears_with_verbose_only(run_raising, capsys, error: Exception):
    assert run_raising(error) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert run_raising(error, "-v") == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_unexpected_error_is_told_in_one_line_and_asks_for_a_report(run_raising, capsys):
    assert run_raising(ZeroDivisionError("division by zero\nmore")) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: unexpected ZeroDivisionError: division by zero\n")
    assert "please report it" in told


def test_an_unexpected_error_does_not_tell_a_password(run_raising, capsys):
    run_raising(RuntimeError("no answer from http://u:zQ7@host"))
    assert "zQ7" not in capsys.readouterr().err


def test_ctrl_c_ends_with_130_and_no_stack_trace(run_raising, capsys):
    assert run_raising(KeyboardInterrupt(), "-v") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_wrong_option_ends_with_2(run_raising, capsys):
    assert run_raising(FrazilError("not reached"), "--no-such-option") == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_a_command_that_does_not_fail_ends_with_0(run_raising, capsys):
    run_raising(FrazilError("defines the module"))
    capsys.readouterr()
    assert run_command("fake", "fake", ["other"]) == 0
    assert capsys.readouterr().err == ""
