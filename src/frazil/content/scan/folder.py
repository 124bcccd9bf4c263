"""A folder as a bucket: its files are objects, their paths below it are keys.

Links are not followed, so that a walk never leaves the folder or goes in circles. An etag is the time of the last
change and the size: a copy that keeps both is the same object, and no content has to be read.
"""

from __future__ import annotations

import mimetypes
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from frazil.content.buckets import folder_of, require_readable
from frazil.content.scan.listing import PAGE, Object, Page, Shard, Skipped, utc_text
from frazil.errors import NotAllowedError, NotFoundError, UsageError
from frazil.settings import Settings
from frazil.storage import parse
from frazil.storage.faults import from_os

#: Names of temporary files and locks of Frazil's local storage.
_OURS = (".frazil-tmp", ".frazil-lock")


@dataclass(frozen=True)
class Folder:
    """A folder as a `ScanTarget`.

    Attributes:
        bucket: its URI.
        root: its path.
        own: Frazil's own folders below it, which are not listed.
    """

    bucket: str
    root: str
    own: tuple[str, ...] = ()

    is_local = True

    def now(self) -> datetime:
        _check(self.root)
        return _now()

    def pages(self, shard: Shard, position: str | None = None) -> Iterator[Page]:
        found = self.walk(shard, position or "")
        while True:
            observed_at = _now()
            entries = list(islice(found, PAGE))
            objects = [entry for _, entry in entries if not isinstance(entry, Skipped)]
            skipped = tuple(entry for _, entry in entries if isinstance(entry, Skipped))
            last = len(entries) < PAGE
            yield Page(objects, observed_at, None if last else entries[-1][0], skipped)
            if last:
                return

    def children(self, prefix: str, at_most: int) -> list[str] | None:
        begin = _folder_of(prefix)
        try:
            names, odd = self._names(begin)
        except OSError:
            return []  # who lists it will tell
        found = [begin + n for n in names if n.endswith("/") and n not in odd and (begin + n).startswith(prefix)]
        return found if len(found) <= at_most else None

    def look_up(self, keys: Sequence[tuple[str, str]]) -> Iterator[tuple[datetime, list[Object]]]:
        _check(self.root)
        for start in range(0, len(keys), PAGE):
            observed_at = _now()
            yield observed_at, [self._ask(key) for key, _ in keys[start : start + PAGE]]

    def look_up_readable(self, keys: Sequence[str]) -> Iterator[tuple[datetime, list[Object]]]:
        """Like `look_up`, but omits keys that cannot be read."""
        _check(self.root)
        for start in range(0, len(keys), PAGE):
            observed_at, found = _now(), []
            for key in keys[start : start + PAGE]:
                with suppress(OSError):
                    found.append(self._looked_at(key))
            yield observed_at, found

    def _ask(self, key: str) -> Object:
        try:
            return self._looked_at(key)
        except OSError as error:
            raise from_os(error, f"{self.bucket}/{key}") from error

    def _looked_at(self, key: str) -> Object:
        inside = _is_inside(key) and self._is_no_link(_folder_of(key))
        found = self._object(key) if inside else None
        return found or {"key": key, "version_id": "", "exists": False}

    def is_empty(self) -> bool:
        """Whether the folder is empty, as when a disk is not mounted."""
        with os.scandir(self.root) as entries:
            return next(iter(entries), None) is None

    def walk(self, shard: Shard, after: str = "") -> Iterator[tuple[str, Object | Skipped]]:
        """Yields the objects of a shard after a key, and what was skipped, each with its position in key order."""
        _check(self.root)
        begin = _folder_of(shard.prefix)
        if self._is_no_link(begin):
            yield from self._walk(begin, shard, after)

    def _walk(self, begin: str, shard: Shard, after: str) -> Iterator[tuple[str, Object | Skipped]]:
        """Walks a folder in key order: folder names sort with their slash, since `a-b` comes before `a/b`."""
        try:
            names, odd = self._names(begin)
        except OSError as error:
            if not begin:
                raise from_os(error, self.bucket) from error
            if begin > after:
                yield begin, Skipped(begin, error.strerror or type(error).__name__)
            return
        for name in names:
            key = begin + name
            if not key.startswith(shard.prefix) and not shard.prefix.startswith(key):
                continue
            if name in odd:
                if key > after:
                    yield key, Skipped(begin + _readable(name), odd[name], unknown=False)
            elif name.endswith("/"):
                if shard.deep and (key > after or after.startswith(key)):
                    yield from self._walk(key, shard, after)
            elif key > after and key.startswith(shard.prefix) and (found := self._seen(key)) is not None:
                yield key, found

    def _names(self, begin: str) -> tuple[list[str], dict[str, str]]:
        """Returns the names in a folder in key order, folders with a slash, and why some of them cannot be objects."""
        found, odd = [], {}
        try:
            with os.scandir(self._path(begin)) as entries:
                for entry in entries:
                    reason = self._no_object(entry)
                    if reason == "":
                        continue
                    name = f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
                    if reason is not None:
                        odd[name] = reason
                    found.append(name)
        except (FileNotFoundError, NotADirectoryError):
            return [], {}  # deleted since
        return sorted(found), odd

    def _no_object(self, entry: os.DirEntry[str]) -> str | None:
        """Returns why an entry is neither object nor folder; empty if not worth a mention; None if it is one."""
        if entry.name.endswith(_OURS) or (self.own and entry.path in self.own):
            return ""
        if not _is_utf8(entry.name):
            return "the name is not UTF-8"
        if entry.is_symlink():
            return "a link, which is not followed"
        return None if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False) else ""

    def _seen(self, key: str) -> Object | Skipped | None:
        try:
            return self._object(key)
        except OSError as error:
            return Skipped(key, error.strerror or type(error).__name__)

    def _object(self, key: str) -> Object | None:
        """Returns a file as an object; None if it no longer exists, or is a socket or the like."""
        try:
            found = os.lstat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return {
            "key": key,
            "version_id": "",
            "exists": True,
            "size": found.st_size,
            "etag": etag(found.st_mtime_ns, found.st_size),
            "last_modified": utc_text(_to_microseconds(found.st_mtime_ns)),
            "content_type": mimetypes.guess_type(key)[0],
            "is_latest": True,
            "is_delete_marker": False,
        }

    def _path(self, key: str) -> str:
        return f"{self.root.rstrip('/')}/{key}"

    def _is_no_link(self, begin: str) -> bool:
        """Whether the path to a folder contains no symbolic link."""
        return os.path.realpath(self._path(begin)) == os.path.realpath(self.root).rstrip("/") + f"/{begin}".rstrip("/")


def open_folder(bucket: str, settings: Settings) -> Folder:
    """Opens the folder at a URI.

    Raises:
        NotFoundError: it is not there.
        UsageError: it is a file, or one of Frazil's own folders.
        NotAllowedError: `content.buckets` does not name it.
    """
    require_readable(bucket, settings.model.content.buckets)
    root = os.path.realpath(folder_of(bucket))
    _check(root)
    places = _own_places(settings)
    inside = next((place for place in places[1:] if _is_below(root, place)), None)
    if inside is not None:
        raise UsageError(
            f"{root} is Frazil's own folder", cause=f"{inside} has its log, tables or thumbnails", hint="another one"
        )
    own = tuple(dict.fromkeys(place for place in places if _is_below(place, root) and place != root))
    return Folder(bucket, root, tuple(p for p in own if not any(p != o and _is_below(p, o) for o in own)))


def check_prefix(prefix: str) -> str:
    """Checks that a prefix stays inside the folder.

    Raises:
        UsageError: it does not.
    """
    above = _folder_of(prefix).removesuffix("/")
    if prefix.startswith("/") or (above and not _is_inside(above)):
        raise UsageError(f"'{prefix}' is not a prefix of keys in a folder", hint="a relative path, such as 2026/")
    return prefix


def etag(mtime_ns: int, size: int) -> str:
    return f"{mtime_ns:x}-{size:x}"


def _own_places(settings: Settings) -> list[str]:
    """Returns Frazil's home, then its own folders: log, scan states, thumbnails, warehouses."""
    from frazil.topics.connection import log_folder

    model = settings.model
    places: list[Path] = [model.home, log_folder(settings), model.home / "content"]
    thumbnails = parse(model.content.extract.thumbnails or str(model.home / "thumbnails"))
    if thumbnails.scheme == "file":
        places.append(thumbnails.path)
    for name in settings.catalog_names():
        catalog = settings.catalog(name)
        if catalog.resolved_kind != "sql" or not catalog.warehouse:
            continue
        warehouse = parse(catalog.warehouse)
        if warehouse.scheme == "file":
            places.append(warehouse.path)
    return [os.path.realpath(place) for place in places]


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_inside(key: str) -> bool:
    return not any(part in ("", ".", "..") for part in key.split("/")) and "\0" not in key


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _readable(name: str) -> str:
    return os.fsencode(name).decode(errors="replace")


def _folder_of(prefix: str) -> str:
    """Returns the deepest folder that holds all keys with a prefix, with its slash; empty for the root."""
    return prefix[: prefix.rfind("/") + 1]


def _check(root: str) -> None:
    try:
        found = os.stat(root)  # noqa: PTH116 - beside lstat and scandir
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"there is no folder {root}", hint="check the name; a bucket is s3://NAME") from None
    except OSError as error:
        raise from_os(error, root) from error
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{root} is a file", hint=f"its folder: {os.path.dirname(root)}")  # noqa: PTH120
    if not os.access(root, os.R_OK | os.X_OK):
        raise NotAllowedError(f"not allowed: {root}", hint="check owner and mode of the folder")


def _now() -> datetime:
    return datetime.now(UTC)


def _to_microseconds(mtime_ns: int) -> datetime:
    """Converts a time to microseconds. Files may claim years that no table can hold."""
    try:
        return datetime.fromtimestamp(mtime_ns // 1_000_000_000, UTC).replace(microsecond=mtime_ns // 1000 % 1_000_000)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)
