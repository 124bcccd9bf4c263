"""The files of a table, with a cache of manifests, and counts of what was read."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from io import BytesIO
from threading import Lock
from typing import Any, Literal

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, OutputFile

from frazil.settings import NetworkSettings
from frazil.tables.cache import LruCache
from frazil.tables.reading.retrying import read_with_retry

Kind = Literal["manifest_list", "manifest", "data"]


@dataclass
class ScanExplanation:
    """What a query has read.

    Attributes:
        manifests: of the snapshot.
        manifests_skipped: of them, by their partitions.
        manifests_fetched: manifests and manifest lists that were not cached.
        files: data files of the snapshot.
        files_skipped: of them, by partition or bounds.
        row_groups: of the files that were not skipped; None: not counted.
        row_groups_skipped: of them, by bounds.
        requests: reads of storage, without those for `row_groups`.
        bytes: that these have read.
        tail_messages: that were applied from the log.
    """

    manifests: int = 0
    manifests_skipped: int = 0
    manifests_fetched: int = 0
    files: int = 0
    files_skipped: int = 0
    row_groups: int | None = None
    row_groups_skipped: int | None = None
    requests: int = 0
    bytes: int = 0
    tail_messages: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class ReadCounts:
    """Reads of one query, by kind of file. Any number of threads may count."""

    requests: Counter[Kind] = field(default_factory=Counter)
    bytes: int = 0
    opened: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def add(self, kind: Kind, size: int) -> None:
        with self._lock:
            self.requests[kind] += 1
            self.bytes += size


class MeasuredFileIO(FileIO):
    """The same files. Manifests and their lists, which never change, are read once per process.

    Args:
        inner: of the table.
        cache: of manifests.
        network: patience with the storage.
        counts: of one query.
    """

    def __init__(
        self, inner: FileIO, cache: LruCache[str, bytes], network: NetworkSettings, counts: ReadCounts
    ) -> None:
        super().__init__(inner.properties)
        self._inner, self._cache, self._network, self._counts = inner, cache, network, counts

    def new_input(self, location: str) -> InputFile:
        self._counts.opened.add(location)
        made = self._inner.new_input(location)
        if location.endswith(".avro"):
            return _CachedFile(made, self._cache, self._network, self._counts)
        return _CountedFile(made, self._counts)

    def new_output(self, location: str) -> OutputFile:
        return self._inner.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._inner.delete(location)


class _CachedFile(InputFile):
    """A manifest or a manifest list."""

    def __init__(
        self, inner: InputFile, cache: LruCache[str, bytes], network: NetworkSettings, counts: ReadCounts
    ) -> None:
        super().__init__(inner.location)
        self._inner, self._cache, self._network, self._counts = inner, cache, network, counts

    def _content(self) -> bytes:
        def read() -> bytes:
            with self._inner.open(seekable=False) as stream:
                content: bytes = stream.read()
            self._counts.add("manifest_list" if "/snap-" in self.location else "manifest", len(content))
            return content

        return self._cache.get_or_compute(self.location, lambda: read_with_retry(read, self._network), len)

    def __len__(self) -> int:
        return len(self._content())

    def exists(self) -> bool:
        return self._inner.exists()

    def open(self, seekable: bool = True) -> Any:
        return BytesIO(self._content())


class _CountedFile(InputFile):
    """A data file or a delete file."""

    def __init__(self, inner: InputFile, counts: ReadCounts) -> None:
        super().__init__(inner.location)
        self._inner, self._counts = inner, counts

    def __len__(self) -> int:
        return len(self._inner)

    def exists(self) -> bool:
        return self._inner.exists()

    def open(self, seekable: bool = True) -> Any:
        return pa.PythonFile(_CountedStream(self._inner.open(seekable=seekable), self._counts), mode="r")


class _CountedStream:
    """A stream that counts each read, which is one request to an object store."""

    def __init__(self, inner: Any, counts: ReadCounts) -> None:
        self._inner, self._counts = inner, counts

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._inner.read(size) if size >= 0 else self._inner.read()
        self._counts.add("data", len(content))
        return content

    def seek(self, place: int, whence: int = 0) -> int:
        return int(self._inner.seek(place, whence))

    def tell(self) -> int:
        return int(self._inner.tell())

    def size(self) -> int:
        return int(self._inner.size())

    @property
    def closed(self) -> bool:
        return bool(self._inner.closed)

    def close(self) -> None:
        self._inner.close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
