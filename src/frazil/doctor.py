"""Checks this machine and what the settings point to: each line ok or failed, with what to do."""

from __future__ import annotations

import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from frazil.backup.location import check_repository, repository_uri
from frazil.catalogs import abilities_of, flavor_of, list_namespaces, local_path, open_catalog, translated
from frazil.catalogs.kinds import ABILITY_NAMES
from frazil.catalogs.properties import sqlite_file
from frazil.errors import (
    FrazilError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    first_line,
    translate_os_error,
)
from frazil.log.owner import read_owner
from frazil.settings import CatalogSettings, Settings, environment
from frazil.settings.permissions import is_private
from frazil.spark import spark_session
from frazil.spark.jars import cached_jars
from frazil.spark.java import find_java
from frazil.storage import open_store, parse
from frazil.storage.buckets import inspect_bucket
from frazil.topics.connection import connect, log_folder

_GIB = 1024**3
_NEEDED_DISK = 1 * _GIB
_CLOCK_SECONDS = 5.0


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `detail` says what was found, or why it failed."""

    name: str
    ok: bool
    detail: str
    hint: str | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine(settings: Settings, *, catalog: str | None = None, spark: bool = True) -> Iterator[Check]:
    """Runs the checks one after the other; one that fails does not stop the rest."""
    chosen = settings.catalog(catalog)
    yield _check("python", _python)
    yield _check("java", lambda: _java(settings))
    yield _check("jars", lambda: _jars(settings))
    yield _check("catalog", lambda: _catalog(settings, chosen))
    yield _check("storage", lambda: _storage(settings, chosen))
    if (bucket := _warehouse_bucket(chosen)) is not None:
        yield _check("bucket", lambda: _bucket(settings, chosen, bucket))
    yield _check("backups", lambda: check_repository(settings))
    yield _check("disk", lambda: _disk(settings.model.home))
    yield _check("log", lambda: _log(settings))
    yield _check("privacy", lambda: _privacy(settings))
    yield _check("clock", lambda: _clock(settings, chosen))
    if spark:
        yield _check("spark", lambda: _spark(settings, chosen))


def _check(name: str, look: Callable[[], str]) -> Check:
    began = time.perf_counter()
    try:
        ok, detail, hint = True, look(), None
    except Exception as error:  # noqa: BLE001 - a check that breaks is a finding, not the end of the examination
        known = translate_os_error(error) if isinstance(error, OSError) else error
        if isinstance(known, FrazilError):
            ok, detail, hint = False, known.message + (f": {known.cause}" if known.cause else ""), known.hint
        else:
            ok, detail = False, f"{type(error).__name__}: {first_line(error)}"
            hint = "run the same command with -v, and please report it"
    return Check(name, ok, detail, hint, round(time.perf_counter() - began, 3))


def _python() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def _java(settings: Settings) -> str:
    java = find_java(settings.model.spark.java_home)
    return f"{java.version} in {java.home}"


def _jars(settings: Settings) -> str:
    jars = cached_jars(settings.model.cache)
    return f"{len(jars)} jars in {jars[0].parent}, checksums valid"


def _catalog(settings: Settings, chosen: CatalogSettings) -> str:
    opened = open_catalog(chosen, settings.model.network)
    with translated(chosen):
        count = len(list(list_namespaces(opened)))
    able = abilities_of(chosen, opened.properties)
    missing = [name for name in ABILITY_NAMES if not getattr(able, name)]
    without = f"; does not support: {', '.join(missing)}" if missing else ""
    flavor = flavor_of(chosen, opened.properties)
    where = chosen.uri or chosen.endpoint or "AWS"
    return f"'{chosen.name}' ({flavor}) at {where}, {_plural(count, 'namespace')}{without}"


def _storage(settings: Settings, chosen: CatalogSettings) -> str:
    root = _warehouse_uri(chosen)
    if root is None:
        return f"the catalog assigns the location of tables (warehouse '{chosen.warehouse or ''}'); not tested"
    store = open_store(root, s3=chosen.s3 or settings.model.s3, network=settings.model.network)
    key, content = f".frazil-doctor-{uuid.uuid4()}", uuid.uuid4().bytes
    began = time.perf_counter()
    store.put(key, content)
    try:
        if store.get(key) != content:
            raise FrazilError(f"{root} returned different bytes than were written", hint="do not use this storage")
    finally:
        store.delete(key)
    return f"{root}: written, read and deleted in {(time.perf_counter() - began) * 1000:.0f} ms"


def _warehouse_bucket(chosen: CatalogSettings) -> str | None:
    """Returns the S3 bucket of the warehouse, if the settings name one."""
    root = _warehouse_uri(chosen)
    location = parse(root) if root is not None else None
    return location.bucket if location is not None and location.scheme == "s3" else None


def _bucket(settings: Settings, chosen: CatalogSettings, name: str) -> str:
    """Whether the bucket keeps versions, so that a mistake can be undone, and encrypts what it holds."""
    state = inspect_bucket(name, chosen.s3 or settings.model.s3, settings.model.network)
    hint = f"frazil setup bucket {name}"
    if not state.exists:
        raise NotFoundError(f"bucket s3://{name} does not exist", hint=hint)
    lacks = []
    if state.versioning not in (None, "Enabled"):
        lacks.append(f"versioning is {state.versioning.lower()}")
    if state.encryption == "Off":
        lacks.append("encryption is disabled")
    if lacks:
        raise NotAllowedError(f"bucket s3://{name} is not set up for a warehouse: {' and '.join(lacks)}", hint=hint)
    told = [f"versioning {(state.versioning or 'unknown').lower()}", f"encryption {state.encryption or 'unknown'}"]
    return f"s3://{name}: {', '.join(told)}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _warehouse_uri(chosen: CatalogSettings) -> str | None:
    """Returns the location for test objects; a table bucket accepts only files of tables."""
    warehouse = chosen.warehouse or ""
    if flavor_of(chosen) == "s3tables":
        return None
    return warehouse if "://" in warehouse or local_path(warehouse) is not None else None


def _disk(home: Path) -> str:
    environment.require_known(str(home), "home")
    folder = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_DISK:
        raise UnavailableError(
            f"{folder} has {free / _GIB:.1f} GiB free; {_NEEDED_DISK / _GIB:.0f} GiB are needed",
            hint="free some space, or choose another folder: --set home=DIR",
        )
    return f"{free / _GIB:.0f} GiB free at {folder}"


def _log(settings: Settings) -> str:
    """Reports the owner of the log, and the time that its disk takes for a sync."""
    if settings.model.log.broker is not None:
        with connect(settings) as access:
            return f"{access.where} is reachable, {_plural(len(access.topics()), 'topic')}"
    folder = log_folder(settings)
    owner = read_owner(folder)
    if owner is not None and "flight" in owner.addresses:
        return f"{folder}: served by process {owner.pid} at {owner.addresses['flight']}"
    if owner is not None:
        return f"{folder}: open in process {owner.pid}"
    above = next(p for p in (folder, *folder.parents) if p.exists())
    if not above.is_dir():
        raise NotAllowedError(
            f"cannot create {folder}",
            cause=f"{above} is a file",
            hint="choose another folder: --set log.directory=DIR",
        )
    try:
        seconds = _sync_seconds(above)
    except OSError as error:
        raise translate_os_error(OSError(error.errno, error.strerror), str(above)) or error from None
    return f"{folder} is not open in any process; a sync on that disk takes {seconds * 1000:.1f} ms"


def _privacy(settings: Settings) -> str:
    """Whether other users of this machine can read the log, the embedded catalog or what lies in home."""
    home = settings.model.home
    places = [home, log_folder(settings) if settings.model.log.broker is None else home]
    catalogs = map(settings.catalog, settings.catalog_names())
    places += [sqlite_file(catalog) for catalog in catalogs if catalog.kind == "sql"]
    if (repository := parse(repository_uri(settings))).scheme == "file":
        places.append(repository.path)
    # Where the folder above is private, what is in it is as well.
    found = [place for place in dict.fromkeys(places) if place.exists() and not is_private(place.parent)]
    if shared := [place for place in found if not is_private(place)]:
        named = " ".join(shlex.quote(str(place)) for place in shared)
        raise NotAllowedError(
            f"other users of this machine can access {', '.join(map(str, shared))}",
            cause="they contain messages, metadata and names of objects",
            hint=f"chmod -R go-rwx {named}",
        )
    return f"only this user can read {home}, the log, the catalog and the backups"


def _sync_seconds(folder: Path) -> float:
    """Measures the median of a few syncs of a small file."""
    took = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".frazil-doctor-") as file:
        for _ in range(9):
            file.write(bytes(256))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took)


def _clock(settings: Settings, chosen: CatalogSettings) -> str:
    """Compares our clock with the storage's: retention and orphan removal go by the latter."""
    root = _warehouse_uri(chosen)
    if root is None or local_path(root) is not None:
        return "no other clock to compare with"
    store = open_store(root, s3=chosen.s3 or settings.model.s3, network=settings.model.network)
    key = f".frazil-doctor-{uuid.uuid4()}"
    store.put(key, b"clock")
    try:
        skew = abs((datetime.now(UTC) - store.head(key).last_modified).total_seconds())
    finally:
        store.delete(key)
    if skew > _CLOCK_SECONDS:
        raise FrazilError(
            f"the clocks of this machine and of the storage differ by {skew:.0f} s",
            hint="synchronise the clock (NTP) on both machines",
        )
    return f"within {_CLOCK_SECONDS:.0f} s of the storage's"


def _spark(settings: Settings, chosen: CatalogSettings) -> str:
    began = time.perf_counter()
    with spark_session(settings) as session:
        started = time.perf_counter() - began
        session.catalog.setCurrentCatalog(chosen.name)
        namespaces = session.sql("SHOW NAMESPACES").count()
        about = f"Spark {session.version} on {settings.model.spark.master}, started in {started:.1f} s"
        return f"{about}; Spark sees {_plural(namespaces, 'namespace')}"
