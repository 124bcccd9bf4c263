"""All servers behind one door: each is started when first asked for, at most once, and stopped with the rest."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tests.services.azurite import Azurite, start_azurite
from tests.services.glue import Glue, start_glue
from tests.services.handle import Handle
from tests.services.hdfs import Hdfs, start_hdfs
from tests.services.hive import Hive, start_hive
from tests.services.mariadb import MariaDB, start_mariadb
from tests.services.minio import MinIO, start_minio
from tests.services.nessie import Nessie, start_nessie
from tests.services.postgres import Postgres, start_postgres
from tests.services.rest import Rest, start_rest
from tests.services.seaweedfs import SeaweedFS, start_seaweedfs
from tests.services.secured_rest import SecuredRest, start_secured_rest

H = TypeVar("H", bound=Handle)
NAMES = (
    "seaweedfs", "minio", "azurite", "hdfs", "rest", "rest_on_s3", "secured_rest", "nessie", "hive", "glue", "mariadb",
    "postgres",
)  # fmt: skip
_PASSABLE = 0o711  # PostgreSQL does not run as root, and its own user has to pass through to its data


class Services:
    """The servers by name. Use as a context manager, or `close` it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="frazil-services-"))
        self.folder.chmod(_PASSABLE)
        self._started: dict[str, Handle] = {}
        self._lock = threading.RLock()

    @property
    def seaweedfs(self) -> SeaweedFS:
        return self._once("seaweedfs", start_seaweedfs)

    @property
    def minio(self) -> MinIO:
        return self._once("minio", start_minio)

    @property
    def rest(self) -> Rest:
        return self._once("rest", start_rest)

    @property
    def rest_on_s3(self) -> Rest:
        """The reference server with its warehouse on SeaweedFS."""
        s3 = self.seaweedfs
        return self._once(
            "rest_on_s3",
            lambda folder: start_rest(
                folder, name="rest_on_s3", warehouse=f"{s3.make_bucket('warehouse')}/rest", access=s3.access
            ),
        )

    @property
    def secured_rest(self) -> SecuredRest:
        upstream = self.rest
        return self._once("secured_rest", lambda folder: start_secured_rest(folder, upstream=upstream))

    @property
    def nessie(self) -> Nessie:
        s3 = self.seaweedfs
        return self._once(
            "nessie",
            lambda folder: start_nessie(folder, access=s3.access, location=f"{s3.make_bucket('warehouse')}/nessie/"),
        )

    @property
    def hive(self) -> Hive:
        return self._once("hive", start_hive)

    @property
    def glue(self) -> Glue:
        return self._once("glue", start_glue)

    @property
    def azurite(self) -> Azurite:
        return self._once("azurite", start_azurite)

    @property
    def hdfs(self) -> Hdfs:
        return self._once("hdfs", start_hdfs)

    @property
    def mariadb(self) -> MariaDB:
        return self._once("mariadb", start_mariadb)

    @property
    def postgres(self) -> Postgres:
        return self._once("postgres", start_postgres)

    def own(self, start: Callable[[Path], H]) -> H:
        """One more server, for a test that needs it in another way; stopped with the rest."""
        with self._lock:
            folder = self._new_folder("own")
            handle = start(folder)
            self._started[folder.name] = handle
            return handle

    def close(self) -> None:
        """Stops what was started, the last first, and removes its files."""
        with self._lock:
            while self._started:
                _, handle = self._started.popitem()
                handle.stop()
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Services:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _once(self, name: str, start: Callable[[Path], H]) -> H:
        with self._lock:
            if name not in self._started:
                self._started[name] = start(self._new_folder(name))
            return self._started[name]  # type: ignore[return-value]

    def _new_folder(self, name: str) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix=f"{name}-"))
        folder.chmod(_PASSABLE)
        return folder
