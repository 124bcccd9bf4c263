"""Files of expired snapshots are deleted beside a writer whose commits clean up former metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.catalogs import local_path
from frazil.errors import UnavailableError
from frazil.observe.faultpoints import handled
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import expired_file_lists, reclaim
from tests.upkeep_files import care_of, expired_by_hand, make, old_ids, replaced, sound, step


@pytest.fixture
def care(tmp_path: Path) -> UpkeepContext:
    return care_of(tmp_path / "home")


def test_a_former_metadata_file_that_goes_meanwhile_does_not_stop_it(care: UpkeepContext) -> None:
    table = replaced(make(care))
    expired_by_hand(care, table, *old_ids(table))
    former = Path(local_path(table.refresh().metadata.metadata_log[0].metadata_file) or "/nowhere")
    seen: list[str] = []

    def clean_up(at: str) -> None:
        seen.append(at)
        if at == "tables.sync.before":
            former.unlink(missing_ok=True)

    with handled(clean_up):
        outcome = reclaim.run(care, table, step("reclaim", grace_s=0.0))
    assert seen.count("tables.sync.before") == 2, "it was in the way the first time"
    assert outcome.result == "done" and outcome.files_removed
    sound(care, table, [1, 2, 3])


def test_a_disk_that_fails_is_told_and_nothing_is_deleted(care: UpkeepContext, monkeypatch: pytest.MonkeyPatch) -> None:
    table = replaced(make(care))
    made = expired_by_hand(care, table, *old_ids(table))

    def fail(_: object) -> None:
        raise UnavailableError("it could not be put on disk") from OSError(5, "Input/output error")

    monkeypatch.setattr(reclaim, "sync_files", fail)
    with pytest.raises(UnavailableError):
        reclaim.run(care, table, step("reclaim", grace_s=0.0))
    assert all(Path(local_path(file.uri) or "/nowhere").exists() for file in made.files)


def test_a_file_that_comes_back_into_the_table_meanwhile_stays(care: UpkeepContext) -> None:
    """The table is looked at twice: a commit may have landed while the first look was taken."""
    table = replaced(make(care))
    made = expired_by_hand(care, table, *old_ids(table))
    (again, *others) = [file.uri for file in made.files if file.kind == "data"]

    def bring_back(at: str) -> None:
        if at == "upkeep.reclaim.look.before":
            table.refresh().add_files([again], check_duplicate_files=False)

    with handled(bring_back):
        outcome = reclaim.run(care, table, step("reclaim", grace_s=0.0))
    assert outcome.files_removed
    assert Path(local_path(again) or "/nowhere").exists()
    assert not any(Path(local_path(uri) or "/nowhere").exists() for uri in others)
    sound(care, table, [1, 1, 2, 3])


def test_a_list_whose_snapshots_are_still_there_does_not_count_as_committed(care: UpkeepContext) -> None:
    """Its commit may be under way: the grace begins when the snapshots are gone."""
    table = replaced(make(care))
    expired_by_hand(care, table, *old_ids(table), commit=False, committed=False)
    assert reclaim.run(care, table, step("reclaim", grace_s=0.0)).result == "nothing"
    (left,) = expired_file_lists.waiting(care.storage_of(table), table)
    assert not left.committed
