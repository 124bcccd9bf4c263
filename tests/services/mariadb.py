"""MariaDB with an empty database, from Debian's packages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.services.database import Database, database_url
from tests.services.debian import find_program, install_packages
from tests.services.installs import InstallError, run
from tests.services.process import free_port, start

# The core packages hold the programs without the service that would start on the standard port.
_PACKAGES = ("mariadb-server-core", "mariadb-client-core")


@dataclass(frozen=True, kw_only=True)
class MariaDB(Database):
    client: Path

    def query(self, sql: str) -> str:
        """What MariaDB's own client answers, without headings."""
        login = ["--no-defaults", f"--host={self.host}", f"--port={self.port}", f"--user={self.user}", self.database]
        return run([self.client, *login, "-N", "-e", sql], env={"MYSQL_PWD": self.password}).strip()


def install_mariadb() -> tuple[Path, Path, Path]:
    """The server, the program that makes its data folder, and the client."""
    if _programs() is None:
        install_packages(*_PACKAGES)
    found = _programs()
    if found is None:
        raise InstallError(f"the packages {_PACKAGES} brought no mariadbd, mariadb-install-db and mariadb")
    return found


def start_mariadb(folder: Path) -> MariaDB:
    server, make_data, client = install_mariadb()
    port, data = free_port(), folder / "data"
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    run(
        [
            make_data,
            "--no-defaults",
            *as_root,
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]
    )
    (folder / "init.sql").write_text(
        f"CREATE DATABASE {MariaDB.database} CHARACTER SET utf8mb4;\n"
        f"CREATE USER '{MariaDB.user}'@'{MariaDB.host}' IDENTIFIED BY '{MariaDB.password}';\n"
        f"GRANT ALL ON *.* TO '{MariaDB.user}'@'{MariaDB.host}';\n"
    )
    command: list[str | Path] = [
        server,
        "--no-defaults",
        *as_root,
        f"--datadir={data}",
        f"--socket={folder / 'mariadb.sock'}",
    ]
    command += [
        "--bind-address=127.0.0.1",
        f"--port={port}",
        f"--init-file={folder / 'init.sql'}",
        "--skip-name-resolve",
    ]
    process = start("mariadb", command, folder=folder, port=port)
    handle = MariaDB(url=database_url("mysql", port), process=process, port=port, client=client)
    process.wait_ready(lambda: _answers(handle))
    return handle


def _programs() -> tuple[Path, Path, Path] | None:
    server, make_data, client = (find_program(name) for name in ("mariadbd", "mariadb-install-db", "mariadb"))
    return (server, make_data, client) if server and make_data and client else None


def _answers(handle: MariaDB) -> bool:
    try:
        return handle.query("SELECT 1") == "1"
    except InstallError:
        return False
