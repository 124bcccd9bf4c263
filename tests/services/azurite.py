"""Azurite, Microsoft's emulator of Azure Blob Storage, from npm."""

from __future__ import annotations

import tempfile
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.debian import find_program, install_packages
from tests.services.handle import Handle
from tests.services.installs import InstallError, cache_folder, only_one, run
from tests.services.process import free_port, port_answers, start

VERSION = "3.35.0"
#: Account and key are the same in every emulator, and public.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True, kw_only=True)
class Azurite(Handle):
    """`url` is the endpoint of the account."""

    @property
    def credentials(self) -> str:
        return f"{_ACCOUNT} / {_KEY}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which clients find it."""
        return {"AZURE_STORAGE_ENDPOINT": self.url, "AZURE_STORAGE_ACCOUNT_KEY": _KEY}

    def make_container(self) -> str:
        """Makes a container, and returns its URI."""
        from pyarrow.fs import AzureFileSystem

        authority = f"127.0.0.1:{self.process.port}"
        files: Any = AzureFileSystem(
            _ACCOUNT, account_key=_KEY, blob_storage_authority=authority, dfs_storage_authority=authority,
            blob_storage_scheme="http", dfs_storage_scheme="http",
        )  # fmt: skip
        name = f"c-{uuid.uuid4()}"  # to ask for one that exists takes this client half a minute
        files.create_dir(name)
        return f"abfss://{name}@{_ACCOUNT}.dfs.core.windows.net"


def install_azurite() -> Path:
    """Returns the program in the cache, installed first where it is missing."""
    folder = cache_folder() / f"azurite-{VERSION}"
    if not folder.is_dir():
        with only_one("azurite"), tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".azurite-") as scratch:
            if not folder.is_dir():
                run([_find_npm(), "install", "--silent", "--prefix", f"{scratch}/it", f"azurite@{VERSION}"])
                (Path(scratch) / "it").replace(folder)
    return folder / "node_modules" / ".bin" / "azurite-blob"


def start_azurite(folder: Path) -> Azurite:
    port = free_port()
    command = [install_azurite(), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", folder]
    command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    # It waits for its clients' idle connections before it obeys SIGTERM, and nobody needs its data afterwards.
    process = start("azurite", command, folder=folder, port=port, grace_seconds=0)
    process.wait_ready(lambda: port_answers(port))
    return Azurite(url=f"http://127.0.0.1:{port}/{_ACCOUNT}", process=process)


def _find_npm() -> Path:
    with suppress(InstallError):
        if find_program("npm") is None:
            install_packages("npm")
    if (found := find_program("npm")) is None:
        raise InstallError("azurite needs npm. Try: apt-get install npm")
    return found
