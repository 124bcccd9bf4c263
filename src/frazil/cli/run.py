"""Runs one command and turns whatever happens into an exit code and, on stderr, into words."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import traceback

import typer

from frazil.errors import FrazilError, InterruptedByUser, UsageError, first_line, mask_urls


def run_command(name: str, module: str, args: list[str]) -> int:
    verbose = "-v" in args or "--verbose" in args
    try:
        command = typer.main.get_command(importlib.import_module(f"frazil.cli.{module}").app)
        result = command.main(args=args, prog_name=f"frazil {name}", standalone_mode=False)
    except FrazilError as error:
        return _report(error, args, verbose)
    except (KeyboardInterrupt, typer.Abort):
        return _report(InterruptedByUser("interrupted"), args, verbose=False)
    except BrokenPipeError:
        # The reader had enough (`| head`). Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the last place to catch anything
        return _unexpected(error, name, args, verbose)
    return result if isinstance(result, int) else 0


def _unexpected(error: Exception, name: str, args: list[str], verbose: bool) -> int:
    if isinstance(error, typer.Exit):
        return int(error.exit_code or 0)
    describe = getattr(error, "format_message", None)
    if callable(describe):  # Typer's own: a wrong option, a missing argument
        return _report(UsageError(describe(), hint=f"frazil {name} --help"), args, verbose=False)
    unexpected = FrazilError(
        f"unexpected {type(error).__name__}: {first_line(error)}", hint="the same with -v shows where; please report it"
    )
    unexpected.__cause__ = error if verbose else None
    return _report(unexpected, args, verbose)


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


def _wants_json(args: list[str]) -> bool:
    joined = {"--output=json", "-ojson", "-o=json"} & set(args)
    return bool(joined) or any(a in ("-o", "--output") and b == "json" for a, b in itertools.pairwise(args))
