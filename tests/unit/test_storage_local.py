"""Local folders: what the contract cannot show from outside. Durability, failures, concurrency between processes."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.errors import ConflictError, FrazilError, NotAllowedError, UnavailableError, UnsupportedError, UsageError
from frazil.storage import local
from frazil.storage.local import LocalStore
from frazil.storage.uri import parse
from tests.small_disk import small_disk


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(parse(str(tmp_path)))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


PUTS: list[Callable[[LocalStore], str]] = [
    lambda store: store.put("folder/new", b"content"),
    lambda store: store.put_if_absent("folder/new", b"content"),
    lambda store: store.put_if_match("folder/old", b"content", store.head("folder/old").etag),
]


@pytest.mark.parametrize("put", PUTS)
def test_content_is_synced_before_it_gets_its_name_and_the_folder_after(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[LocalStore], str]
) -> None:
    store.put("folder/old", b"old")
    seen: list[str] = []

    def record(name: str, original: Callable[..., None]) -> None:
        def call(*args: object) -> None:
            is_folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)  # type: ignore[arg-type]
            seen.append("sync folder" if is_folder else "sync file" if name == "fsync" else "name")
            original(*args)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "replace", "link"):
        record(name, getattr(os, name))
    put(store)
    assert seen == ["sync file", "name", "sync folder"]


def test_new_folders_are_synced_into_their_parents(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd)))
    store.put("a/b/object", b"x")
    assert {str(tmp_path), f"{tmp_path}/a", f"{tmp_path}/a/b"} <= set(synced)


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, UnavailableError), (errno.EIO, FrazilError)])
def test_a_failing_sync_leaves_the_old_content_and_no_litter(
    store: LocalStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    put: Callable[[LocalStore], str],
    code: int,
    kind: type[FrazilError],
) -> None:
    store.put("folder/old", b"old")

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind, match="folder/") as caught:
        put(store)
    assert caught.value.hint
    assert files(tmp_path) == ["folder/old"]
    assert store.get("folder/old") == b"old"


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    with small_disk("256k") as folder:
        yield folder


def test_a_full_disk_is_told_and_leaves_nothing(tiny_disk: Path) -> None:
    store = LocalStore(parse(str(tiny_disk)))
    store.put("small", b"x")
    for content in (b"x" * 1024 * 1024, iter([b"x" * 65536] * 16)):
        with pytest.raises(UnavailableError, match="no space left") as caught:
            store.put("large", content)
        assert "free some space" in (caught.value.hint or "")
    assert files(tiny_disk) == ["small"]
    store.put("fits", b"x" * 65536)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder that this process may read but not write, although tests may run as root."""
    folder = Path(tempfile.mkdtemp())
    (folder / "object").write_bytes(b"x")
    (folder / "secret").write_bytes(b"x")
    (folder / "secret").chmod(0o000)
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_missing_permission_is_told(unprivileged: Path) -> None:
    store = LocalStore(parse(str(unprivileged)))
    assert store.get("object") == b"x"
    for call in (
        lambda: store.get("secret"),
        lambda: store.put("object", b"y"),
        lambda: store.put_if_absent("new", b"y"),
        lambda: store.put("folder/new", b"y"),
        lambda: store.delete("object"),
    ):
        with pytest.raises(NotAllowedError) as caught:
            call()
        assert caught.value.hint
    assert files(unprivileged) == ["object", "secret"]


def test_temporary_and_lock_files_are_never_listed_and_never_keys(store: LocalStore, tmp_path: Path) -> None:
    store.put("object", b"x")
    (tmp_path / ".0123.frazil-tmp").write_bytes(b"left by a crash")
    (tmp_path / ".frazil-lock").write_bytes(b"")
    assert [info.key for info in store.list()] == ["object"]
    for key in (".0123.frazil-tmp", ".frazil-lock", "a/.frazil-lock"):
        with pytest.raises(UsageError):
            store.put(key, b"")


def test_while_content_is_arriving_nothing_is_visible(store: LocalStore) -> None:
    def watching() -> Iterator[bytes]:
        yield b"first half, "
        assert list(store.list()) == []
        yield b"second half"

    store.put("object", watching())
    assert store.get("object") == b"first half, second half"


def test_the_etag_does_not_rely_on_the_tick_of_the_kernels_clock(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", iter(range(1_700_000_000_123_456_789, 1_700_000_000_123_456_999)).__next__)
    etags = {store.put("object", b"same size") for _ in range(100)}
    assert len(etags) == 100
    assert (tmp_path / "object").stat().st_mtime_ns == 1_700_000_000_123_456_789 + 99


def test_no_other_write_comes_between_comparing_and_replacing(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = store.put("pointer", b"0")
    other = threading.Thread(target=store.put, args=["pointer", b"unconditional"])
    compare = LocalStore._require
    waited: list[bool] = []

    def compare_slowly(*args: Any) -> None:
        compare(*args)
        if list(tmp_path.glob(".*.frazil-tmp")):  # the comparison just before the replacing
            other.start()
            other.join(0.5)
            waited.append(other.is_alive())

    monkeypatch.setattr(LocalStore, "_require", compare_slowly)
    store.put_if_match("pointer", b"conditional", etag)
    other.join()
    assert waited == [True]
    assert store.get("pointer") == b"unconditional"


def test_an_object_cannot_be_a_folder_too(store: LocalStore) -> None:
    store.put("a", b"x")
    store.put("folder/b", b"x")
    for call in (lambda: store.put("a/b", b"x"), lambda: store.put("folder", b"x")):
        with pytest.raises(UnsupportedError, match="object and a folder"):
            call()
    assert [info.key for info in store.list()] == ["a", "folder/b"]


def test_a_name_too_long_for_the_file_system_is_a_usage_error(store: LocalStore) -> None:
    with pytest.raises(UsageError, match="too long"):
        store.put("x" * 300, b"")


def test_a_file_system_without_hard_links_is_told(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", source, None, target)

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(UnsupportedError, match="hard links are not supported"):
        store.put_if_absent("object", b"x")
    assert list(store.list()) == []


def test_where_folders_cannot_be_locked_a_lock_file_does(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = local.fcntl.flock

    def like_nfs(handle: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(handle, operation)

    monkeypatch.setattr(local.fcntl, "flock", like_nfs)
    etag = store.put("object", b"1")
    store.put_if_match("object", b"2", etag)
    with pytest.raises(ConflictError):
        store.put_if_match("object", b"3", etag)
    assert (tmp_path / ".frazil-lock").exists()
    assert [info.key for info in store.list()] == ["object"]


INCREMENT = """
import sys, time
from frazil.errors import ConflictError
from frazil.storage.local import LocalStore
from frazil.storage.uri import parse
store = LocalStore(parse(sys.argv[1]))
compare = LocalStore._require
LocalStore._require = lambda *args: (compare(*args), time.sleep(0.003))  # room for others to come in between
done = 0
while done < 25:
    etag = store.head("counter").etag
    try:
        value = int(b"".join(store.get_stream("counter", etag=etag)))
        store.put_if_match("counter", b"%d" % (value + 1), etag)
        done += 1
    except ConflictError:
        pass
"""


def test_no_increment_is_lost_between_processes(store: LocalStore, tmp_path: Path) -> None:
    store.put("counter", b"0")
    workers = [subprocess.Popen([sys.executable, "-c", INCREMENT, str(tmp_path)]) for _ in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert store.get("counter") == b"75"
    assert files(tmp_path) == ["counter"]


def test_a_link_to_a_folder_does_not_make_a_listing_endless(store: LocalStore, tmp_path: Path) -> None:
    store.put("folder/object", b"x")
    (tmp_path / "folder/loop").symlink_to(tmp_path)
    assert [info.key for info in store.list()] == ["folder/object"]
