"""Thumbnails, keyed by content.

They are a cache and can be made again. So writes are not synced, and a thumbnail that cannot be written does not fail
its object.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from frazil.atomic_files import write_file
from frazil.errors import FrazilError, NotFoundError, first_line
from frazil.settings import Settings, SettingsModel
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import open_store, parse

#: Concurrent writes over the network.
_AT_ONCE = 4


def thumbnail_key(bucket: str, key: str, version_id: str, etag: str | None) -> str:
    """Returns the name of an object's thumbnail. It differs for each content."""
    told = "\0".join((bucket, key, version_id, etag or ""))
    digest = hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{digest[:2]}/{digest}.webp"


def thumbnails_uri(model: SettingsModel) -> str:
    """Returns the URI of the thumbnails."""
    return model.content.extract.thumbnails or str(model.home / "thumbnails")


@dataclass(frozen=True)
class ThumbnailStore:
    """The thumbnails under a URI. Can be pickled.

    Attributes:
        uri: a folder, or a prefix of a bucket.
        s3: credentials and endpoint.
        network: timeouts and retries.
    """

    uri: str
    s3: S3Settings
    network: NetworkSettings

    @classmethod
    def of(cls, settings: Settings) -> ThumbnailStore:
        return cls.of_model(settings.model)

    @classmethod
    def of_model(cls, model: SettingsModel) -> ThumbnailStore:
        return cls(thumbnails_uri(model), model.s3, model.network)

    @property
    def folder(self) -> Path | None:
        """The folder, if it is on this machine."""
        location = parse(self.uri)
        return location.path if location.scheme == "file" else None

    def put(self, name: str, data: bytes) -> None:
        """Writes a thumbnail atomically; see `thumbnail_key`.

        Raises:
            OSError: the folder cannot be written.
            FrazilError: the store refuses it.
        """
        if (folder := self.folder) is None:
            open_store(self.uri, s3=self.s3, network=self.network).put(name, data)
            return
        path = folder / name
        try:
            write_file(path, data, durable=False)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, data, durable=False)

    def get(self, name: str) -> bytes | None:
        """Returns a thumbnail; None if there is none.

        Raises:
            FrazilError: the store does not answer.
        """
        try:
            if (folder := self.folder) is not None:
                return (folder / name).read_bytes() or None
            return open_store(self.uri, s3=self.s3, network=self.network).get(name)
        except (NotFoundError, FileNotFoundError, NotADirectoryError):
            return None

    def delete(self, *names: str) -> None:
        """Deletes thumbnails; missing ones count as deleted."""
        if (folder := self.folder) is None:
            open_store(self.uri, s3=self.s3, network=self.network).delete(*names)
            return
        for name in names:
            with suppress(FileNotFoundError, NotADirectoryError):
                (folder / name).unlink()


class ThumbnailWriter:
    """Writes thumbnails in the background, and counts those that could not be written.

    Args:
        store: where to write; None: nowhere.
    """

    def __init__(self, store: ThumbnailStore | None) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(_AT_ONCE) if store is not None and store.folder is None else None
        self._running: list[Future[None]] = []
        self.written = self.failed = 0
        self.reason: str | None = None

    def put(self, name: str, data: bytes) -> None:
        if self._store is None:
            return
        if self._pool is None:
            self._write(self._store, name, data)
            return
        while len(self._running) >= 4 * _AT_ONCE:
            self._running.pop(0).result()
        self._running.append(self._pool.submit(self._write, self._store, name, data))

    def finish(self) -> None:
        for one in self._running:
            one.result()
        self._running.clear()
        if self._pool is not None:
            self._pool.shutdown()

    def _write(self, store: ThumbnailStore, name: str, data: bytes) -> None:
        try:
            store.put(name, data)
            self.written += 1
        except (OSError, FrazilError) as error:
            self.failed += 1
            self.reason = self.reason or first_line(error)
