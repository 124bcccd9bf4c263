"""Resolves the jars that Spark needs, once, into a cache, and checks each against its locked checksum.

Ivy does the fetching: it ships inside PySpark, takes Maven coordinates, and follows the user's own Ivy settings
where a company has a mirror. Nothing here names a host.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from frazil.errors import IntegrityError, NotAllowedError, SetupError
from frazil.settings import environment
from frazil.spark.java import Java

LOCK_FILE = Path(__file__).with_name("jars.lock.json")
_IVY_SECONDS = 1800


@dataclass(frozen=True)
class Jar:
    """A jar by its Maven coordinate, group:artifact:version[:classifier], and what its bytes must be."""

    coordinate: str
    sha256: str
    size: int

    @property
    def parts(self) -> tuple[str, str, str, str | None]:
        group, artifact, version, *rest = self.coordinate.split(":")
        return group, artifact, version, rest[0] if rest else None

    @property
    def file_name(self) -> str:
        _, artifact, version, classifier = self.parts
        return f"{artifact}-{version}{'-' + classifier if classifier else ''}.jar"


def read_lock(lock: Path = LOCK_FILE) -> list[Jar]:
    return [Jar(**entry) for entry in json.loads(lock.read_text())["jars"]]


def cached_jars(cache: Path, lock: Path = LOCK_FILE) -> list[Path]:
    """Returns the locked jars in the cache, each compared with its checksum (0.1 to 0.5 s in all).

    Raises:
        SetupError: one is missing.
        IntegrityError: one is not what the lock says.
    """
    paths = []
    for jar in read_lock(lock):
        path = _folder(cache) / jar.file_name
        if not environment.sees(path):
            raise SetupError(f"{jar.coordinate} is not in the cache at {path.parent}", hint="frazil setup")
        _check(path, jar)
        paths.append(path)
    return paths


def fetch_jars(
    cache: Path,
    java: Java,
    *,
    lock: Path = LOCK_FILE,
    ivy_settings: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Brings every locked jar into the cache; those that are there and right are left alone.

    Safe to call from several processes at once, and after a crash: a jar appears under its name only when it is
    whole and its checksum fits. A cache in which all is right is not written to.

    Raises:
        NotAllowedError: something is to be fetched, and the cache cannot be written.
    """
    with suppress(SetupError, IntegrityError):
        return cached_jars(cache, lock)
    folder = _folder(cache)
    with _only_one(_lock_file(folder)):
        missing = [jar for jar in read_lock(lock) if not _is_right(folder / jar.file_name, jar)]
        if missing:
            progress(f"downloading {len(missing)} jars, {sum(j.size for j in missing) / 1e6:.0f} MB")
            _fetch(missing, folder, java, ivy_settings)
    return cached_jars(cache, lock)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folder(cache: Path) -> Path:
    environment.require_known(str(cache), "cache")
    return cache / "jars"


def _lock_file(folder: Path) -> Path:
    file = folder / ".lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise NotAllowedError(
            f"cannot create or write {folder}",
            cause=error.strerror,
            hint="choose another folder: --set cache=DIR, or FRAZIL_CACHE",
        ) from error
    return file


def _is_right(path: Path, jar: Jar) -> bool:
    return path.is_file() and path.stat().st_size == jar.size and sha256_of(path) == jar.sha256


def _check(path: Path, jar: Jar) -> None:
    found = sha256_of(path)
    if found != jar.sha256:
        raise IntegrityError(
            f"{path} is not {jar.coordinate}",
            cause=f"its SHA-256 is {found}; the lock file has {jar.sha256}",
            hint="frazil setup downloads it again; if the error persists, do not trust the source",
        )


@contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(jars: list[Jar], folder: Path, java: Java, ivy_settings: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        work = Path(scratch)
        _run_ivy(jars, work, java, ivy_settings)
        for jar in jars:
            arrived = work / "jars" / jar.file_name
            if not arrived.is_file():
                raise SetupError(
                    f"{jar.coordinate} was not found in the Maven repository", hint="check spark.ivy_settings"
                )
            _check(arrived, jar)
            arrived.replace(folder / jar.file_name)


def _run_ivy(jars: list[Jar], work: Path, java: Java, ivy_settings: Path | None) -> None:
    (work / "ivy.xml").write_text(_ivy_file(jars))
    command = [str(java.executable), "-cp", str(spark_home() / "jars" / "*"), "org.apache.ivy.Main"]
    command += ["-cache", str(work / "cache"), "-ivy", str(work / "ivy.xml"), "-confs", "default", "-types", "jar"]
    command += ["-retrieve", str(work / "jars" / "[artifact]-[revision](-[classifier]).[ext]")]
    if ivy_settings is not None:
        command += ["-settings", str(ivy_settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_IVY_SECONDS, check=False)
    if done.returncode != 0:
        reason = next(
            (line.strip() for line in done.stdout.splitlines() if "Exception" in line or "not found" in line), ""
        )
        raise SetupError(
            "the Spark jars could not be downloaded",
            cause=reason or done.stdout.strip()[-300:],
            hint="check the network, or set a mirror in spark.ivy_settings; then: frazil setup",
        )


def _ivy_file(jars: list[Jar]) -> str:
    rows = []
    for jar in jars:
        group, artifact, version, classifier = jar.parts
        inner = (
            f"<artifact name={quoteattr(artifact)} type='jar' ext='jar' m:classifier={quoteattr(classifier)}/>"
            if classifier
            else ""
        )
        rows.append(
            f"<dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)} "
            f"transitive='false' conf='default->*'>{inner}</dependency>"
        )
    return (
        "<ivy-module version='2.0' xmlns:m='http://ant.apache.org/ivy/maven'>"
        "<info organisation='frazil' module='jars'/><configurations><conf name='default'/></configurations>"
        f"<dependencies>{''.join(rows)}</dependencies></ivy-module>"
    )


def spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("PySpark is not installed", hint="pip install frazil")
    return Path(spec.origin).parent
