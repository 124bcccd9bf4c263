"""Redis from Debian's package, with an append-only file that is synced before each answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.services.debian import find_program, install_packages
from tests.services.handle import Handle
from tests.services.installs import InstallError
from tests.services.process import free_port, port_answers, start

# No snapshots and no rewrite of the file: both would run in the middle of a measurement.
_DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--auto-aof-rewrite-percentage", "0")


@dataclass(frozen=True, kw_only=True)
class Redis(Handle):
    pass


def install_redis() -> Path:
    if find_program("redis-server") is None:
        install_packages("redis-server")
    found = find_program("redis-server")
    if found is None:
        raise InstallError("the package redis-server brought no redis-server")
    return found


def start_redis(folder: Path) -> Redis:
    """Starts it with its data in `folder`."""
    port = free_port()
    command = [install_redis(), "--bind", "127.0.0.1", "--port", str(port), "--dir", folder, *_DURABLE]
    process = start("redis", command, folder=folder, port=port)
    process.wait_ready(lambda: port_answers(port))
    return Redis(url=f"redis://127.0.0.1:{port}", process=process)
