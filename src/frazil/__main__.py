"""The `frazil` command. Knows only names and one line about each, so that `--help` and `--version` answer at once."""

from __future__ import annotations

import io
import sys

#: Command → module of `frazil.cli`, and what it is for. The order is that of `frazil --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Run a demonstration of Frazil on this machine; needs nothing else"),
    "setup": ("setup", "Find or install Java and download the Spark jars (once per machine)"),
    "doctor": ("doctor", "Check Java, jars, Spark, catalog, storage, bucket, backups, disk, log and clock"),
    "config": ("config", "Show and validate the settings, and show the source of each"),
    "sql": ("sql", "Query and modify tables with SQL, on Spark or DuckDB"),
    "table": ("table", "List, inspect and maintain tables"),
    "topic": ("topic", "Publish to, read and administer topics"),
    "serve": ("serve", "Run the broker: serve the log over Arrow Flight and HTTP"),
    "pipeline": ("pipeline", "Write messages from the log to tables, on Spark"),
    "content": ("content", "Catalog the objects in buckets and folders: scan, ingest, list, reconcile"),
    "docs": ("docs", "Manage document metadata, with its full history, on any store"),
    "backup": ("backup", "Back up tables with their history, and restore them anywhere"),
    "replica": ("replica", "Serve tables from a copy of their storage, even if the primary is lost"),
    "upkeep": ("upkeep", "Keep tables fast and small: plan, run and review maintenance"),
    "up": ("up", "Run the broker and the pipeline together"),
}

_COMMON_WITH_VALUE = ("--config", "--set", "--output", "-o", "--catalog")


def main(argv: list[str] | None = None) -> None:
    args = list(sys.argv[1:] if argv is None else argv)
    _prepare_output()
    try:
        code = _run(args)
        print(end="", flush=True)  # noqa: T201 - here, where it can still be told that it failed
    except OSError as error:
        from frazil.cli.run import report_os_error

        code = report_os_error(error, args)
    sys.exit(code)


def _prepare_output() -> None:
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows what it can
    raw: object = sys.stdout.buffer
    if isinstance(raw, io.RawIOBase):
        # PYTHONUNBUFFERED: Python would take a write that a full disk or a closed pipe cut short for a whole one.
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), sys.stdout.encoding, sys.stdout.errors, line_buffering=True
        )


def _run(args: list[str]) -> int:
    leading, rest = _split_leading_options(args)
    if "--version" in leading or "-V" in leading:
        from frazil.version import __version__

        print(f"frazil {__version__}")  # noqa: T201
        return 0
    if not rest or "--help" in leading or "-h" in leading:
        print(_help())  # noqa: T201
        return 0
    name, *others = rest
    if name not in COMMANDS:
        return _unknown(name)
    from frazil.cli.run import run_command

    return run_command(name, COMMANDS[name][0], others + leading)


def _split_leading_options(args: list[str]) -> tuple[list[str], list[str]]:
    """Options before the command's name belong to every command; they are handed to the one that follows."""
    position = 0
    while position < len(args) and args[position].startswith("-"):
        position += 2 if args[position] in _COMMON_WITH_VALUE else 1
    return args[:position], args[position:]


def _help() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {about}" for name, (_, about) in COMMANDS.items())
    return (
        "Usage: frazil COMMAND [OPTIONS]\n\n"
        "Frazil keeps the metadata of objects and documents in Apache Iceberg.\n\n"
        f"Commands:\n{rows}\n\n"
        "Options of every command:\n  -o, --output text|json  Output format\n"
        "  --config FILE           Settings file (default: frazil.yaml in this folder or a parent)\n"
        "  --set KEY=VALUE         Set one setting; overrides all other sources\n"
        "  -v, --verbose           Log more and show stack traces\n"
        "  -h, --help              Show help for a command\n  -V, --version           Show the version\n\n"
        "Example:\n  frazil demo"
    )


def _unknown(name: str) -> int:
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, n=1)
    tried = f"frazil {close[0]}" if close else "frazil --help"
    print(f"error: unknown command '{name}'\n  Try: {tried}", file=sys.stderr)  # noqa: T201
    return 2


if __name__ == "__main__":
    main()
