"""The demo: chapters that show the product at work on the embedded default, in a folder of their own."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from frazil.demo import backup, content, documents, photos, replica, tables, topics, upkeep
from frazil.demo.session import SharedSession
from frazil.demo.stage import Stage
from frazil.errors import NotAllowedError, UsageError
from frazil.settings import Settings, SettingsModel

#: Each chapter is a function of stage, settings and Spark session; later capabilities add theirs here.
CHAPTERS = {
    "tables": tables.chapter,
    "topics": topics.chapter,
    "upkeep": upkeep.chapter,
    "content": content.chapter,
    "photos": photos.chapter,
    "documents": documents.chapter,
    "backup": backup.chapter,
    "replica": replica.chapter,
}

_MARK = "# Made by `frazil demo`; the next demo replaces this folder.\n"


def run_demo(folder: Path, stage: Stage, settings: Settings, only: Collection[str] = ()) -> None:
    """Plays the chapters in a fresh folder, which stays behind to be looked at.

    Of the user's settings only what concerns the machine is used (Java, jars, patience); catalog, storage, log, backups
    and databases are the demo's own.

    Args:
        folder: is made anew.
        stage: where they are shown.
        settings: the user's.
        only: names of chapters; none: all.
    """
    for name in only:
        if name not in CHAPTERS:
            raise UsageError(f"unknown chapter '{name}'", hint=f"one of {', '.join(CHAPTERS)}")
    try:
        _fresh(folder)
    except OSError as error:
        raise NotAllowedError(
            f"cannot replace {folder}", cause=error.strerror, hint="choose another folder with --dir"
        ) from error
    embedded = _isolate(settings, folder / "lake")
    with SharedSession(stage, embedded) as session:
        for name, chapter in CHAPTERS.items():
            if not only or name in only:
                chapter(stage, embedded, session)


def _isolate(settings: Settings, home: Path) -> Settings:
    """Leaves of the user's settings what concerns the machine: their log, repository and databases stay untouched."""
    user = settings.model
    return Settings(
        SettingsModel(home=home, cache=user.cache, spark=user.spark, network=user.network, logging=user.logging)
    )


def _fresh(folder: Path) -> None:
    """Replaces an earlier demo's folder, and nothing else."""
    file = folder / "frazil.yaml"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, but the demo needs a folder", hint="choose another folder with --dir")
    if folder.exists() and any(folder.iterdir()):
        if not (file.is_file() and file.read_text().startswith(_MARK)):
            raise UsageError(
                f"{folder} exists, but was not created by the demo", hint="choose another folder with --dir"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{_MARK}home: ./lake\n")
