"""The demo: chapters that show the product at work on the embedded default, in a folder of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

from frazil.demo import tables, topics, upkeep
from frazil.demo.stage import Stage
from frazil.errors import NotAllowedError, UsageError
from frazil.settings import CatalogSettings, S3Settings, Settings

#: Each chapter is a function of the stage and the settings; later capabilities add theirs here.
CHAPTERS = (tables.chapter, topics.chapter, upkeep.chapter)

_MARK = "# Made by `frazil demo`; the next demo replaces this folder.\n"


def run_demo(folder: Path, stage: Stage, settings: Settings) -> None:
    """Plays all chapters in a fresh folder, which stays behind to be looked at.

    Of the user's settings only what concerns the machine is used (Java, jars, patience); catalog and storage are the
    demo's own.
    """
    try:
        _fresh(folder)
    except OSError as error:
        raise NotAllowedError(
            f"{folder} cannot be made anew", cause=error.strerror, hint="--dir names another folder"
        ) from error
    own = {"home": folder / "lake", "catalog": CatalogSettings(), "catalogs": {}, "s3": S3Settings()}
    embedded = Settings(settings.model.model_copy(update=own))
    for chapter in CHAPTERS:
        chapter(stage, embedded)


def _fresh(folder: Path) -> None:
    """Replaces an earlier demo's folder, and nothing else."""
    file = folder / "frazil.yaml"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, and the demo needs a folder", hint="--dir names another folder")
    if folder.exists() and any(folder.iterdir()):
        if not (file.is_file() and file.read_text().startswith(_MARK)):
            raise UsageError(f"{folder} is there and was not made by the demo", hint="--dir names another folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{_MARK}home: ./lake\n")
