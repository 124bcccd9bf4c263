"""Files that Java writes for upkeep are on disk before those that they replace are deleted (`tests/witness.py`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.machine import machine_environment
from tests.sink_kit import sink_kit
from tests.witness import Disk, Trace, at_the_end, moments, witnessed

#: Hadoop's checksums beside its files: a missing one is no loss. SQLite makes its index anew after a crash.
KEPT = r"/home/(?!.*(\.crc|catalog\.db-shm)$)(warehouse/|catalog\.db)"


def frazil(root: Path, *args: str) -> Trace:
    kept = {name: os.environ[name] for name in ("PATH", "HOME")}
    own = {**kept, **machine_environment(), "FRAZIL_HOME": str(root / "home")}
    return witnessed(root, "-m", "frazil", *args, environment=own)


@pytest.mark.long("upkeep with Spark below strace")
@pytest.mark.deep
def test_upkeep_deletes_files_only_when_those_that_replace_them_are_on_disk(tmp_path: Path) -> None:
    """Takes about 40 s: a JVM is started twice, under strace."""
    root = tmp_path / "root"
    with sink_kit(root / "home") as kit:
        kit.create("orders")
        for number in range(6):
            kit.publish("orders", b"%d" % number)
            kit.engine("orders").catch_up()
    compacted: Disk = at_the_end(frazil(root, "table", "compact", "topics.orders", "--min-files", "2"))
    assert len(compacted.seen(r"/warehouse/.*\.parquet$")) == 1
    assert compacted.lost(KEPT) == []
    expire = ("table", "expire", "topics.orders", "--keep", "1", "--grace")
    assert at_the_end(frazil(root, *expire, "1d")).lost(KEPT) == [], "the catalog names metadata that Java wrote"
    reclaimed = frazil(root, *expire, "0s")
    deleted = list(moments(reclaimed, lambda c: c.name.startswith("unlink") and c.paths[0].endswith(".parquet")))
    assert len(deleted) == 6
    assert {what for _, disk in deleted for what in disk.lost(KEPT)} == set()
    assert at_the_end(reclaimed).lost(KEPT) == []
