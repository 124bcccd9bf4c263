"""`frazil demo`."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from frazil.cli.invocation import Run, command, new_app
from frazil.cli.printing import print_table

app = new_app("Show what Frazil does.")

_NEXT = """\
All files are in {folder}; no process is left running. Try next:

  cd {folder}{unset}
  {frazil} table list
  {frazil} table snapshots demo.photos
  {frazil} sql "SELECT camera, count(*) FROM demo.photos GROUP BY camera"
  {frazil} sql "SELECT * FROM demo.photos.history"
  {frazil} topic show camera_events
  {frazil} topic replay camera_events --from 20995
  {frazil} content list --min-size 4KB
  {frazil} content stats --by prefix
  {frazil} content search photos --near 64.1,-21.9 --radius 20km
  {frazil} docs list --tag project=apollo --storage-tier archive --limit 10
  {frazil} docs history contract-00042
  {frazil} backup show latest
  {frazil} table snapshots rescued.bookings
  {frazil} replica history standby.orders
  {frazil} doctor"""


class TextScreen:
    def heading(self, text: str) -> None:
        print(f"\n{text}\n{'─' * len(text)}", flush=True)

    def step(self, text: str, seconds: float) -> None:
        print(f"  ✓ {text}  ({seconds:.1f} s)", flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        print()
        print_table(columns, rows)
        print(flush=True)

    def say(self, text: str) -> None:
        print(f"\n  {text}", flush=True)


class NoScreen:
    def heading(self, text: str) -> None: ...
    def step(self, text: str, seconds: float) -> None: ...
    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None: ...
    def say(self, text: str) -> None: ...


class Chapter(StrEnum):
    """The names of `frazil.demo.CHAPTERS`, which would take a second to import."""

    tables = "tables"
    topics = "topics"
    upkeep = "upkeep"
    content = "content"
    photos = "photos"
    documents = "documents"
    backup = "backup"
    replica = "replica"


@command(app, example="frazil demo --dir /tmp/frazil-demo")
def demo(
    run: Run,
    directory: Annotated[
        Path, typer.Option("--dir", help="folder to work in; the folder of an earlier demo is replaced")
    ] = Path("frazil-demo"),
    chapter: Annotated[list[Chapter] | None, typer.Option(help="run only this chapter; may be repeated")] = None,
) -> None:
    """Run all features on the embedded catalog, with timings. Leaves a folder to explore, and no running process."""
    from frazil.demo import run_demo
    from frazil.demo.stage import Stage

    began = time.perf_counter()
    as_json = run.printer.json_output
    stage = Stage(NoScreen() if as_json else TextScreen())
    run_demo(directory.absolute(), stage, run.settings(), [each.value for each in chapter or ()])
    if as_json:
        run.printer.json(
            {
                "folder": str(directory.absolute()),
                "seconds": round(time.perf_counter() - began, 3),
                "steps": stage.steps,
            }
        )
        return
    print(
        f"Done in {time.perf_counter() - began:.0f} s. "
        + _NEXT.format(folder=directory, frazil=_own_name(), unset=_unset())
    )


def _unset() -> str:
    """The environment goes before the demo's settings file, so that the commands would show the user's own lake."""
    return "\n  unset FRAZIL_HOME" if os.environ.get("FRAZIL_HOME") else ""


def _own_name() -> str:
    """How the user can call us: by name where the shell finds it, else by path (as after `make demo`)."""
    return "frazil" if shutil.which("frazil") else str(Path(sys.argv[0]).absolute())
