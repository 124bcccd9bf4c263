"""The `frazil` command. Knows only names and one line about each, so that `--help` and `--version` answer at once."""

from __future__ import annotations

import io
import sys

#: Command → module of `frazil.cli`, and what it is for. The order is that of `frazil --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Show what Frazil does, on this machine, with nothing else installed"),
    "setup": ("setup", "Find or install Java, and fetch the Spark jars, once"),
    "doctor": ("doctor", "Check Java, jars, Spark, catalog, storage, bucket, backups, disk, log and clock"),
    "config": ("config", "Show and check the settings, and where each comes from"),
    "sql": ("sql", "Query and change tables with SQL, on Spark or DuckDB"),
    "table": ("table", "List tables and look into them"),
    "topic": ("topic", "Publish to topics, read them, and take care of them"),
    "serve": ("serve", "Own the log, and serve it by Arrow Flight and HTTP"),
    "pipeline": ("pipeline", "Take messages from the log into tables, on Spark"),
    "content": ("content", "Know what is in buckets and folders: scan, events, list, reconcile"),
    "docs": ("docs", "Keep the metadata of documents, on any store, with every moment of its past"),
    "backup": ("backup", "Back up tables with their history, and bring them back anywhere"),
    "replica": ("replica", "Serve tables from a copy of their storage, even when the primary is gone"),
    "upkeep": ("upkeep", "Keep tables fast and small: what is planned, done and was done"),
    "up": ("up", "Run serve and pipeline together"),
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
        "Options of every command:\n"
        "  -o, --output text|json  How results are printed\n"
        "  --config FILE           Settings file (default: frazil.yaml here or above)\n"
        "  --set KEY=VALUE         One setting, over all other sources\n"
        "  -v, --verbose           Log more, and show stack traces\n"
        "  -h, --help              Help on a command\n"
        "  -V, --version           The version\n\n"
        "Example:\n  frazil demo"
    )


def _unknown(name: str) -> int:
    import difflib

    close = difflib.get_close_matches(name, COMMANDS, n=1)
    tried = f"frazil {close[0]}" if close else "frazil --help"
    print(f"error: there is no command '{name}'\n  Try: {tried}", file=sys.stderr)  # noqa: T201
    return 2


if __name__ == "__main__":
    main()
