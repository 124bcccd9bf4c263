"""The archive of Spark's classes: those in use are kept."""

from __future__ import annotations

import os
from pathlib import Path

from frazil.spark.archive import use_options


def test_an_archive_that_is_used_is_as_good_as_new(tmp_path: Path) -> None:
    archive = tmp_path / "spark-1.jsa"
    assert use_options(archive) == ""
    archive.touch()
    os.utime(archive, (1, 1))
    assert str(archive) in use_options(archive)
    assert archive.stat().st_mtime > 1, "the ones that were not used for longest are removed first"
