"""Runs one command and turns whatever happens into an exit code and, on stderr, into words."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import select
import sys
import traceback

import typer

from frazil.errors import FrazilError, InterruptedByUser, UsageError, first_line, mask_urls, translate_os_error


def run_command(name: str, module: str, args: list[str]) -> int:
    try:
        command = typer.main.get_command(importlib.import_module(f"frazil.cli.{module}").app)
        # Not its `main`, which ends with 1 when the reader of a pipe has enough.
        with command.make_context(f"frazil {name}", list(args)) as context:
            result = command.invoke(context)
    except FrazilError as error:
        return _report(error, args, _is_verbose(args))
    except (KeyboardInterrupt, typer.Abort):
        return _report(InterruptedByUser("interrupted"), args, verbose=False)
    except OSError as error:
        return report_os_error(error, args)
    except Exception as error:  # noqa: BLE001 - the last place to catch anything
        return _unexpected(error, name, args)
    return result if isinstance(result, int) else 0


def report_os_error(error: OSError, args: list[str]) -> int:
    """Also of standard output: a reader that has enough (`| head`) is no failure, a full disk is one."""
    had_enough = isinstance(error, BrokenPipeError) and _reader_is_gone()
    _drop_unwritten()
    if had_enough:
        return 0
    known = translate_os_error(error)
    if known is None:
        return _report_bug(error, args)
    known.__cause__ = error
    return _report(known, args, _is_verbose(args))


def _drop_unwritten() -> None:
    """What cannot be written now cannot be written at exit either, where Python would complain and end with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            print(end="", file=stream, flush=True)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _reader_is_gone() -> bool:
    """Of standard output or error; a pipe or socket that broke elsewhere is a failure."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _unexpected(error: Exception, name: str, args: list[str]) -> int:
    if isinstance(error, typer.Exit):
        return int(error.exit_code or 0)
    describe = getattr(error, "format_message", None)
    if callable(describe):  # Typer's own: a wrong option, a missing argument
        context = getattr(error, "ctx", None)
        if type(error).__name__ == "NoArgsIsHelpError":  # as `frazil` alone does
            print(describe())
            return 0
        command = context.command_path if context is not None else f"frazil {name}"
        message = describe().replace("Value error, ", "")
        return _report(UsageError(message, hint=f"{command} --help"), args, verbose=False)
    return _report_bug(error, args)


def _report_bug(error: Exception, args: list[str]) -> int:
    unexpected = FrazilError(
        f"unexpected {type(error).__name__}: {first_line(error)}",
        hint="run the same command with -v for a stack trace, and please report it",
    )
    unexpected.__cause__ = error if _is_verbose(args) else None
    return _report(unexpected, args, _is_verbose(args))


def _report(error: FrazilError, args: list[str], verbose: bool) -> int:
    if verbose:
        print(mask_urls("".join(traceback.format_exception(error))), file=sys.stderr)
    if _wants_json(args):
        print(json.dumps(error.to_dict(), ensure_ascii=False), file=sys.stderr)
        return error.exit_code
    print(f"error: {error.message}", file=sys.stderr)
    if error.cause:
        print(f"  why: {error.cause}", file=sys.stderr)
    if error.hint:
        print(f"  Try: {error.hint}", file=sys.stderr)
    return error.exit_code


def _is_verbose(args: list[str]) -> bool:
    return "-v" in args or "--verbose" in args


def _wants_json(args: list[str]) -> bool:
    joined = {"--output=json", "-ojson", "-o=json"} & set(args)
    return bool(joined) or any(a in ("-o", "--output") and b == "json" for a, b in itertools.pairwise(args))
