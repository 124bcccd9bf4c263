"""Files of replicated storage: local folders (OneFS too), S3, ADLS and Google Cloud, and HDFS through Spark's JVM."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frazil.settings import NetworkSettings, S3Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ReplicatedFile:
    """A file that has arrived, at least in part.

    Attributes:
        path: its canonical URI.
        size: in bytes.
    """

    path: str
    size: int


class ReplicaFiles:
    """Reads what a replication has written. Thread safe. Never writes.

    Attributes:
        root: canonical URI of the replicated folder. Files elsewhere can be read too, by their URI.
    """

    root: str

    def list(self, folder: str = "", *, recursive: bool = True) -> Iterator[ReplicatedFile]:
        """Yields the files below a folder, which is a URI or relative to the root. None if there is no such folder."""
        raise NotImplementedError

    def size_of(self, path: str) -> int | None:
        """Returns the size of a file; None if there is none."""
        raise NotImplementedError

    def find_sizes(self, paths: Collection[str]) -> dict[str, int]:
        """Returns the sizes of those files that exist, by listing or by single requests, whichever is cheaper."""
        raise NotImplementedError

    def read(self, path: str) -> bytes:
        """Returns the content of a file.

        Raises:
            NotFoundError: it does not exist.
        """
        raise NotImplementedError


def open_replica_files(
    root: str, *, s3: S3Settings, network: NetworkSettings, spark: Callable[[], SparkSession] | None = None
) -> ReplicaFiles:
    """Opens a replicated folder.

    Args:
        root: a path or URI; HDFS too.
        s3: access to S3.
        network: patience with its servers.
        spark: gives a session, for HDFS.
    """
    raise NotImplementedError


def canonical_path(path: str) -> str:
    """The canonical URI of a file or folder, on HDFS too."""
    raise NotImplementedError
