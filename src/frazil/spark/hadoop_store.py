"""A folder of Hadoop's file systems as an `ObjectStore`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from frazil.errors import ConflictError, UnsupportedError
from frazil.spark.hadoop import HadoopFile, HadoopFiles
from frazil.storage.store import CHUNK, Data, ObjectInfo, check_key, check_range, chunks_of, sha256_of, verified
from frazil.storage.uri import Location


class HadoopStore:
    """An `ObjectStore` on a folder, without conditional replacement. Content is in memory as a whole."""

    lists_in_key_order = False

    def __init__(self, location: Location, files: HadoopFiles) -> None:
        self.root = str(location)
        self._files = files

    def head(self, key: str) -> ObjectInfo:
        return self._info(self._files.measure(self._uri(key)))

    def get(self, key: str) -> bytes:
        return self._files.read(self._uri(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        return self._files.read_range(self._uri(key), start, length)

    def get_stream(self, key: str, *, start: int = 0, etag: str | None = None) -> Iterator[bytes]:
        check_range(key, start, 0)
        if etag is not None and self.head(key).etag != etag:
            raise ConflictError(f"{self._uri(key)} has changed", hint="read it again")
        while chunk := self.get_range(key, start, CHUNK):
            yield chunk
            start += len(chunk)

    def put(self, key: str, data: Data, *, sha256: str | None = None) -> str:
        return self._put(key, data, sha256, replace=True)

    def put_if_absent(self, key: str, data: bytes | Path, *, sha256: str | None = None) -> str:
        return self._put(key, data, sha256, replace=False)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        raise UnsupportedError(f"{self.root} cannot compare before it replaces", hint="a local disk, or a bucket")

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        prefix = prefix.strip("/")
        for file in self._files.list(self._uri(prefix) if prefix else f"{self.root}/"):
            info = self._info(file)
            if info.key > start_after and not info.key.endswith("._COPYING_"):
                yield info

    def copy(self, source: str, target: str) -> None:
        self.put(target, self.get(source))

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._files.delete(self._uri(key))

    def checksum(self, key: str) -> str:
        return sha256_of(self.get_stream(key))

    def _put(self, key: str, data: Data, sha256: str | None, *, replace: bool) -> str:
        uri = self._uri(key)
        self._files.write(uri, b"".join(verified(chunks_of(data), sha256, uri)), replace=replace)
        return self.head(key).etag

    def _uri(self, key: str) -> str:
        return f"{self.root}/{check_key(key)}"

    def _info(self, file: HadoopFile) -> ObjectInfo:
        size = file.size or 0
        modified = datetime.fromtimestamp(file.modified_ms / 1000, UTC)
        return ObjectInfo(file.path[len(self.root) + 1 :], size, f"{file.modified_ms}-{size}", modified)
