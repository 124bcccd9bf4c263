"""Objects in S3, Azure Blob Storage or Google Cloud Storage, through obstore."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.exceptions import BaseError

from frazil.errors import CredentialsError, NotAllowedError, UnavailableError, UnsupportedError
from frazil.storage.clients import Clients
from frazil.storage.faults import from_obstore, status_of
from frazil.storage.store import (
    CHUNK,
    ONE_REQUEST,
    Data,
    ObjectInfo,
    check_key,
    check_range,
    chunks_of,
    sha256_of,
    verified,
)
from frazil.storage.uri import Location

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode, PutResult

_PARTS_AT_ONCE = 4
_PAGE = 1000
_NOBODY = "frazil-asks-whether-anybody-is-there"


class RemoteStore:
    """An `ObjectStore` on a bucket. One try per request: wrap it in `Retrying`.

    Before its first request, and after one without answer, it *greets*: a listing of nothing that must be answered
    within the time of a connection. So a dead address, a missing bucket and wrong keys are told at once and by name (an
    error to a HEAD has no body that could), while a real request may take as long as its bytes need.
    """

    def __init__(self, location: Location, clients: Clients, *, lists_in_key_order: bool) -> None:
        self.root = str(location)
        self.lists_in_key_order = lists_in_key_order
        self._bucket = str(Location(location.scheme, location.authority, ""))
        self._prefix = f"{check_key(location.key)}/" if location.key else ""
        self._by_version = location.scheme == "gs"  # Google compares generations, the others etags
        self._is_azure = location.scheme in ("abfss", "az")
        self._clients = clients
        self._greeted = False

    def head(self, key: str) -> ObjectInfo:
        with self._asking(key) as path:
            return self._info(self._clients.once.head(path))

    def get(self, key: str) -> bytes:
        with self._asking(key) as path:
            return bytes(self._clients.once.get(path).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        if length == 0:
            self.head(key)
            return b""
        with self._asking(key) as path:
            try:
                return bytes(self._clients.once.get_range(path, start=start, length=length))
            except BaseError as error:
                if _is_beyond_end(error):
                    return b""
                raise

    def get_stream(self, key: str, *, start: int = 0, etag: str | None = None) -> Iterator[bytes]:
        check_range(key, start, 0)
        options: GetOptions = {}
        if start:
            options["range"] = {"offset": start}
        if etag is not None:
            options["version" if self._by_version else "if_match"] = etag
        with self._asking(key) as path:
            try:
                found = self._clients.once.get(path, options=options)
            except BaseError as error:
                if _is_beyond_end(error):
                    return
                raise
            for chunk in found.stream(min_chunk_size=CHUNK):
                yield bytes(chunk)

    def put(self, key: str, data: Data, *, sha256: str | None = None) -> str:
        chunks = verified(chunks_of(data), sha256, f"{self.root}/{key}")
        first = _at_least(CHUNK, chunks)
        if len(first) < CHUNK:
            with self._asking(key) as path:
                return self._etag(self._clients.once.put(path, first, use_multipart=False))
        parts = itertools.chain([first], chunks)
        with self._asking(key) as path:
            return self._etag(
                self._clients.bulk.put(
                    path, parts, use_multipart=True, chunk_size=CHUNK, max_concurrency=_PARTS_AT_ONCE
                )
            )

    def put_if_absent(self, key: str, data: bytes | Path, *, sha256: str | None = None) -> str:
        chunks = verified(chunks_of(data), sha256, f"{self.root}/{key}")
        content = _at_least(ONE_REQUEST + 1, chunks)
        if len(content) > ONE_REQUEST:
            raise UnsupportedError(
                f"{self.root}/{key} is too large for a conditional write",
                hint="check whether it exists, then write it unconditionally",
            )
        with self._asking(key) as path:
            return self._etag(self._clients.once.put(path, content, mode="create", use_multipart=False))

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        mode: PutMode = {"version": etag} if self._by_version else {"e_tag": etag}
        with self._asking(key) as path:
            return self._etag(self._clients.once.put(path, data, mode=mode, use_multipart=False))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        prefix = prefix.strip("/")
        if prefix:
            check_key(prefix)
        folder = self._prefix + prefix
        # Where the server's order is not known, its own "start after" could skip keys: read all and choose here.
        offset = self._prefix + start_after if start_after and self.lists_in_key_order else None
        with self._talking(f"{self.root}/{prefix}"):
            for page in self._clients.bulk.list(folder or None, offset=offset, chunk_size=_PAGE):
                for meta in page:
                    found = self._info(meta)
                    if found.key > start_after and not self._is_marker(meta, folder.rstrip("/")):
                        yield found

    def copy(self, source: str, target: str) -> None:
        check_key(target)
        with self._asking(source) as path:
            self._clients.once.copy(path, self._prefix + target)

    def delete(self, *keys: str) -> None:
        if not keys:
            return
        paths = [self._prefix + check_key(key) for key in keys]
        with self._talking(f"{self.root}/{keys[0]}"):
            try:
                self._clients.once.delete(paths)
            except FileNotFoundError:  # Azure and Google tell; then the rest may not have been tried
                for path in paths:
                    self._delete_one(path)

    def checksum(self, key: str) -> str:
        return sha256_of(self.get_stream(key))

    def _delete_one(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._clients.once.delete(path)

    def _is_marker(self, meta: ObjectMeta, folder: str) -> bool:
        """Whether this is an empty object `a/` that stands for a folder: obstore lists it as `a`, which is no key."""
        if meta["size"] > 0:
            return False
        if meta["path"] == folder:
            return True
        try:
            self._clients.bulk.head(meta["path"])
        except FileNotFoundError:
            return True
        return False

    def _etag(self, meta: PutResult | ObjectMeta) -> str:
        etag = (meta["version"] if self._by_version else meta["e_tag"]) or ""
        # Azure quotes it everywhere but in listings.
        return f'"{etag}"' if self._is_azure and etag and not etag.startswith('"') else etag

    def _info(self, meta: ObjectMeta) -> ObjectInfo:
        return ObjectInfo(
            meta["path"].removeprefix(self._prefix), meta["size"], self._etag(meta), meta["last_modified"]
        )

    @contextmanager
    def _asking(self, key: str) -> Iterator[str]:
        """Yields the path of a key for a request, and translates errors of that request."""
        path = self._prefix + check_key(key)
        with self._talking(f"{self.root}/{key}"):
            yield path

    @contextmanager
    def _talking(self, where: str) -> Iterator[None]:
        """Checks the connection once, and translates errors."""
        try:
            if not self._greeted:
                self._greet(where)
            yield
        except (BaseError, FileNotFoundError) as error:
            found = from_obstore(error, where, self._bucket)
            if isinstance(found, UnavailableError):
                self._greeted = False
            raise found from error

    def _greet(self, where: str) -> None:
        try:
            self._clients.greeting.list_with_delimiter(_NOBODY)
        except BaseError as error:
            found = from_obstore(error, where, self._bucket)
            # Who may not list may still read and write.
            if not isinstance(found, NotAllowedError) or isinstance(found, CredentialsError):
                raise
        self._greeted = True


def _is_beyond_end(error: BaseError) -> bool:
    """Whether a range begins at the end of an object or beyond, which not all servers refuse."""
    return status_of(error) == 416 or "StartTooLarge" in str(error)


def _at_least(size: int, chunks: Iterator[bytes]) -> bytes:
    """Joins the first chunks: `size` bytes or more, or all of them."""
    taken: list[bytes] = []
    length = 0
    for chunk in chunks:
        taken.append(chunk)
        length += len(chunk)
        if length >= size:
            break
    return b"".join(taken)
