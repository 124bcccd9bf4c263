"""Restores that are killed, or whose disk is full: nothing that exists changes, and a second run continues."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.backup.rollback import rollback_restore
from frazil.errors import UnavailableError
from frazil.upkeep.context import UpkeepContext
from tests.restore_kit import back_up, history, open_repository, restore
from tests.small_disk import small_disk
from tests.upkeep_files import care_of, grow, make

pytestmark = pytest.mark.deep


@pytest.fixture
def care(tmp_path: Path) -> Iterator[UpkeepContext]:
    made = care_of(tmp_path / "home")
    with made.store:
        yield made


def run(care: UpkeepContext, name: str, **order: Any) -> dict[str, Any] | None:
    """A restore in its own process; None if it was killed."""
    given = {"home": str(care.settings.model.home), "name": name, "replace": False, **order}
    command = [sys.executable, "-m", "tests.restore_victim", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


KILLED = [
    ("restore.copy.after", False),
    ("restore.manifest.after", False),
    ("restore.metadata.after", False),
    ("tables.publish.after", False),
    ("restore.list.before", True),
    ("tables.publish.before", True),
    ("tables.publish.after", True),
]


@pytest.mark.long("starts two processes for each case")
@pytest.mark.parametrize(("step", "replace"), KILLED)
def test_a_restore_that_is_killed_is_continued(care, step, replace):
    table = make(care, commits=4)
    before = history(table)
    back_up(care, open_repository(care))
    if replace:
        grow(table)
    now = history(table)
    name = "ns.t" if replace else "ns.r"
    catalog = care.store.catalog
    assert run(care, name, replace=replace, step=step) is None
    is_published = step == "tables.publish.after"
    if replace:
        assert history(catalog.load_table(name)) == (before if is_published else now)
    else:
        assert catalog.table_exists(name) == is_published
    if not is_published:
        again = run(care, name, replace=replace)
        assert again is not None
        copied = again["steps"].count("restore.copy.before")
        assert copied + again["report"]["skipped_files"] == 4
        assert (copied == 0) == (step != "restore.copy.after")
    assert history(catalog.load_table(name)) == before
    if replace:
        rollback_restore(care, name)
        assert history(catalog.load_table(name)) == now


def test_a_full_disk_leaves_the_catalog_as_it_was(care):
    table = make(care, commits=30)
    before = history(table)
    repository = open_repository(care)
    record = back_up(care, repository)
    with small_disk("100k") as disk:
        with pytest.raises(UnavailableError, match="no space"):
            restore(care, repository, record, location=str(disk / "t"))
        assert not care.store.catalog.table_exists("ns.r")
    restore(care, repository, record)
    assert history(care.store.catalog.load_table("ns.r")) == before
