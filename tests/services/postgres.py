"""PostgreSQL with an empty database, from Debian's packages."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.services.database import Database, database_url
from tests.services.debian import find_program, install_packages
from tests.services.installs import InstallError, run
from tests.services.process import free_port, start

_PACKAGES = ("postgresql", "postgresql-client")
_NOT_ROOT = "postgres"  # the server refuses to run as root; the package makes this user


@dataclass(frozen=True, kw_only=True)
class Postgres(Database):
    client: Path

    def query(self, sql: str, *, database: str | None = None) -> str:
        """What psql answers, without headings."""
        login = ["-h", self.host, "-p", str(self.port), "-U", self.user, "-d", database or self.database]
        return run([self.client, "-X", *login, "-At", "-c", sql], env={"PGPASSWORD": self.password}).strip()


def install_postgres() -> tuple[Path, Path, Path]:
    """The server, the program that makes its data folder, and the client."""
    if _programs() is None:
        install_packages(*_PACKAGES)
    found = _programs()
    if found is None:
        raise InstallError(f"the packages {_PACKAGES} brought no postgres, initdb and psql")
    return found


def start_postgres(folder: Path) -> Postgres:
    """Starts it. As root, the user `postgres` must be able to reach `folder`."""
    server, make_data, client = install_postgres()
    port, data = free_port(), folder / "data"
    user = _NOT_ROOT if os.geteuid() == 0 else None
    (folder / "password").write_text(Postgres.password)
    data.mkdir()
    if user:
        for path in (data, folder / "password"):
            shutil.chown(path, user, user)
    login = [f"--username={Postgres.user}", f"--pwfile={folder / 'password'}", "--auth=scram-sha-256"]
    run([make_data, "-D", data, *login, "--encoding=UTF8", "--no-locale", "--no-sync"], user=user)
    command: list[str | Path] = [
        server,
        "-D",
        data,
        "-h",
        "127.0.0.1",
        "-p",
        str(port),
        "-c",
        "unix_socket_directories=",
    ]
    process = start("postgres", command, folder=folder, port=port, user=user)
    handle = Postgres(url=database_url("postgresql", port), process=process, port=port, client=client)
    process.wait_ready(lambda: _answers(handle))
    handle.query(f"CREATE DATABASE {Postgres.database}", database="postgres")
    return handle


def _programs() -> tuple[Path, Path, Path] | None:
    # Debian keeps the server's programs off the PATH, one folder per version.
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    server, make_data, client = (find_program(name, folders) for name in ("postgres", "initdb", "psql"))
    return (server, make_data, client) if server and make_data and client else None


def _answers(handle: Postgres) -> bool:
    try:
        return handle.query("SELECT 1", database="postgres") == "1"
    except InstallError:
        return False
