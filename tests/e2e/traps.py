"""Modules and programs that an attacker leaves in the current folder, and in the one above it."""

from __future__ import annotations

from pathlib import Path

_SPRUNG = "sprung.txt"
#: Modules of the standard library and of packages that every process of Frazil imports sooner or later.
_MODULES = (
    "ast", "asyncio", "base64", "calendar", "csv", "ctypes", "datetime", "decimal", "fastapi", "hashlib", "inspect",
    "json", "logging", "numpy", "pickle", "py4j", "pyarrow", "pydantic", "pyiceberg", "pyspark", "queue", "random",
    "socket", "sqlite3", "structlog", "subprocess", "tempfile", "typer", "typing", "uuid", "uvicorn", "yaml", "zlib",
)  # fmt: skip


def lay_traps(folder: Path) -> None:
    """Puts modules with the names of well-known ones into a folder, and a program `bin/spark-submit` beside it."""
    sprung = folder / _SPRUNG
    for name in _MODULES:
        (folder / f"{name}.py").write_text(
            f"import sys\nopen({str(sprung)!r}, 'a').write('{name} ' + sys.executable)\n"
        )
    submit = folder.parent / "bin" / "spark-submit"
    submit.parent.mkdir()
    (folder.parent / "jars").mkdir()
    submit.write_text(f"#!/bin/sh\necho spark-submit >>'{sprung}'\n")
    submit.chmod(0o755)


def sprung_traps(folder: Path) -> str:
    """Names of the traps that some process ran; empty if none did."""
    file = folder / _SPRUNG
    return file.read_text() if file.exists() else ""
