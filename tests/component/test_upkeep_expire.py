"""Files of expired snapshots: told before, kept for their grace, deleted once, and never one that is needed."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from frazil.__main__ import main
from frazil.errors import ConflictError, CredentialsError, IntegrityError, NotFoundError, UnavailableError, UsageError
from frazil.observe.faultpoints import handled
from frazil.tables import CommitUnknownError
from frazil.tables.metadata.reachable import find_exclusive_files, find_reachable_files
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import expire, expired_file_lists, reclaim
from frazil.upkeep.expiry.expire import plan
from frazil.upkeep.expiry.pins import pins
from frazil.upkeep.expiry.shared_locations import SharedLocationError
from frazil.upkeep.expiry.verify import verify
from tests.topic_kit import MemoryLog, TopicTable, settings_in
from tests.upkeep_files import (
    Crash,
    care_of,
    care_of_settings,
    crash_everywhere,
    expired_by_hand,
    files_in,
    folder,
    grow,
    make,
    old_ids,
    replaced,
    rows,
    sound,
    step,
)

HOUR = 3600.0


@pytest.fixture
def care(tmp_path: Path) -> Iterator[UpkeepContext]:
    made = care_of(tmp_path / "home")
    with made.store:
        yield made


def listed(care: UpkeepContext, table) -> list[expired_file_lists.ExpiredList]:
    return expired_file_lists.waiting(care.storage_of(table), table)


def reclaimed(care: UpkeepContext, table, grace_s: float = 0.0):
    return reclaim.run(care, table, step("reclaim", grace_s=grace_s))


def pass_time(expired: expired_file_lists.ExpiredList, seconds: float) -> None:
    path = expired.uri.removeprefix("file://")
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_plan_names_the_files_that_only_these_snapshots_hold(care):
    table = replaced(make(care))
    first = table.metadata.snapshots[0].snapshot_id
    alone = plan(care, table, [first])
    assert {f.kind for f in alone.files.values()} == {"manifest list"}, "its rows are in the next snapshot too"
    every = plan(care, table, old_ids(table))
    kinds = [f.kind for f in every.files.values()]
    assert (kinds.count("data"), kinds.count("manifest list")) == (3, len(old_ids(table)))
    assert every.size > 0
    assert find_reachable_files(care.store, table).keys() >= every.files.keys()
    assert not set(every.files) & set(find_reachable_files(care.store, only_current(table)))


def only_current(table):
    current = [table.current_snapshot()]
    metadata = table.metadata.model_copy(update={"snapshots": current})
    return replace_metadata(table, metadata)


def replace_metadata(table, metadata):
    from pyiceberg.table import Table

    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def test_a_file_that_a_tag_or_branch_still_has_is_not_named(care):
    table = make(care)
    first, second = (s.snapshot_id for s in table.metadata.snapshots[:2])
    table.manage_snapshots().create_tag(first, "the_first").commit()
    replaced(table)
    gone = [i for i in old_ids(table) if i != first]
    data = [f.uri for f in find_exclusive_files(care.store, table, gone).values() if f.kind == "data"]
    assert len(data) == 2, "the file of the first row is the tag's"
    assert second in gone


@pytest.mark.parametrize("what", ["current", "tagged", "unknown"])
def test_what_is_held_or_unknown_is_no_plan(care, what):
    table = make(care)
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().create_tag(first, "the_first").commit()
    asked = {"current": table.metadata.current_snapshot_id, "tagged": first, "unknown": 1}[what]
    with pytest.raises(NotFoundError if what == "unknown" else UsageError):
        plan(care, table, [asked])


def test_files_are_deleted_when_their_grace_is_over_and_not_before(care):
    table = replaced(make(care))
    expired = expired_by_hand(care, table, *old_ids(table))
    before = files_in(table)
    assert reclaimed(care, table, HOUR).result == "nothing"
    assert files_in(table) == before
    waits = reclaim.waiting(care, table, HOUR)
    assert (waits.lists, waits.files, waits.due) == (1, len(expired.files), 0)
    pass_time(expired, 2 * HOUR)
    assert reclaim.waiting(care, table, HOUR).due_size == expired.size
    outcome = reclaimed(care, table, HOUR)
    assert (outcome.result, outcome.files_removed, outcome.bytes_reclaimed) == (
        "done",
        len(expired.files),
        expired.size,
    )
    assert listed(care, table) == []
    sound(care, table, [1, 2, 3])
    data = [f for f in files_in(table) if f.startswith("data/")]
    assert len(data) == 1
    assert reclaimed(care, table).result == "nothing"


class Commit:
    """Iceberg's expiry by PyIceberg; the answer to its commit is lost, or says something else."""

    def __init__(self, table, ids, error, *, lands: bool) -> None:
        self._table, self._ids, self._error, self._lands = table, ids, error, lands

    def commit(self) -> None:
        if self._lands:
            self._table.maintenance.expire_snapshots().by_ids(list(self._ids)).commit()
        raise self._error


def expiring(monkeypatch, table, error, *, lands: bool) -> None:
    prepared = lambda care, at, ids: (Commit(table, ids, error, lands=lands), set(ids))  # noqa: E731
    monkeypatch.setattr(expire, "_prepared", prepared)


@pytest.mark.parametrize("then", [UnavailableError("the catalog is down"), CredentialsError("the token is over")])
def test_the_list_of_a_commit_that_may_have_landed_stays_and_is_reclaimed_later(care, monkeypatch, then):
    table = replaced(make(care))
    gone = old_ids(table)
    expiring(monkeypatch, table, CommitUnknownError("no answer"), lands=True)
    load, loads = UpkeepContext.load, []

    def failing(self, name):
        loads.append(name)
        if len(loads) > 1:
            raise then
        return load(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(UpkeepContext, "load", failing)
        with pytest.raises(CommitUnknownError):
            expire.run(care, table, step("expire", snapshots=gone))
    assert old_ids(table) == [], "it has landed"
    (waits,) = listed(care, table)
    assert (waits.committed, set(waits.snapshots)) == (False, set(gone))
    reclaimed(care, table)
    assert reclaimed(care, table).files_removed == len(waits.files)
    assert len([f for f in files_in(table) if f.startswith("data/")]) == 1
    sound(care, table, [1, 2, 3])


@pytest.mark.parametrize(("error", "stays"), [(UnavailableError("timed out"), True), (ConflictError("lost"), False)])
def test_a_commit_that_was_refused_leaves_no_list_and_one_without_an_answer_does(care, monkeypatch, error, stays):
    table = replaced(make(care))
    expiring(monkeypatch, table, error, lands=False)
    if stays:
        with pytest.raises(UnavailableError):
            expire.run(care, table, step("expire", snapshots=old_ids(table)))
    else:
        assert expire.run(care, table, step("expire", snapshots=old_ids(table))).result == "conflict"
    assert len(listed(care, table)) == stays
    sound(care, table, [1, 2, 3])


def test_what_the_table_needs_again_is_left_and_the_rest_goes(care):
    """A list is no order: somebody has registered an older metadata.json meanwhile."""
    table = replaced(make(care))
    ids = old_ids(table)
    before = table.metadata_location
    expired = expired_by_hand(care, table, *ids)
    catalog = care.store.catalog
    catalog.drop_table("ns.t")
    table = catalog.register_table("ns.t", before)
    outcome = reclaimed(care, table)
    assert outcome.files_removed == 0
    assert listed(care, table) == []
    assert len(expired.files) > 3
    sound(care, table, [1, 2, 3])


def test_a_list_whose_commit_never_came_is_dropped_after_a_while(care):
    table = replaced(make(care))
    expired = expired_by_hand(care, table, *old_ids(table), committed=False, commit=False)
    before = files_in(table)
    assert reclaimed(care, table).result == "nothing"
    assert listed(care, table), "its commit may be under way"
    pass_time(expired, 2 * HOUR)
    reclaimed(care, table)
    assert listed(care, table) == []
    assert {f for f in before if "frazil-expired" not in f} == files_in(table)


def test_a_list_whose_commit_came_untold_waits_its_whole_grace_from_then_on(care):
    table = replaced(make(care))
    expired = expired_by_hand(care, table, *old_ids(table), committed=False)
    pass_time(expired, 100 * HOUR)
    assert reclaimed(care, table, HOUR).result == "nothing"
    (found,) = listed(care, table)
    assert found.committed
    assert reclaimed(care, table, HOUR).result == "nothing", "the readers' time begins when it is known"
    assert reclaimed(care, table, 0.0).files_removed == len(expired.files)
    sound(care, table, [1, 2, 3])


def test_what_could_not_be_deleted_stays_on_the_list_and_is_due_at_once(care):
    table = replaced(make(care))
    expired = expired_by_hand(care, table, *old_ids(table))
    pass_time(expired, 2 * HOUR)

    def fail(name: str) -> None:
        if name == "upkeep.removal.batch.before":
            raise UnavailableError("SlowDown", hint="wait")

    with handled(fail):
        outcome = reclaimed(care, table, HOUR)
    assert (outcome.result, outcome.files_removed, outcome.hint) == ("failed", 0, "wait")
    assert "SlowDown" in (outcome.reason or "")
    (left,) = listed(care, table)
    assert left.files == expired.files
    assert reclaimed(care, table, HOUR).files_removed == len(expired.files)


def test_a_list_of_another_table_or_a_torn_one_is_left_alone(care):
    table = replaced(make(care))
    expired = expired_by_hand(care, table, *old_ids(table))
    places = care.storage_of(table)
    foreign = replace(expired, uri=expired.uri.replace(".json", "-2.json"), table_uuid="another")
    expired_file_lists.write(places, foreign)
    torn = folder(table) / "metadata/frazil-expired-torn.json"
    torn.write_text('{"format": 1, "fil')
    before = {f for f in files_in(table) if "frazil-expired" in f}
    reclaimed(care, table)
    assert len({f for f in files_in(table) if "frazil-expired" in f}) == len(before) - 1
    assert torn.exists()


def test_files_outside_of_the_tables_folders_stay_whatever_a_list_says(care, tmp_path):
    """Imported ones may be others' too; and whoever may write a list must not get other files deleted by us."""
    table = make(care)
    imported = tmp_path / "imported.parquet"
    imported.write_bytes(next(folder(table).rglob("*.parquet")).read_bytes())
    table.add_files([f"file://{imported}"], check_duplicate_files=False)
    replaced(table)
    expired = expired_by_hand(care, table, *old_ids(table))
    assert str(imported) in {f.uri.removeprefix("file://") for f in expired.files}
    assert reclaimed(care, table).files_removed == len(expired.files) - 1
    assert imported.exists()
    assert listed(care, table) == []


def test_a_second_name_of_the_table_stops_the_deleting(care):
    table = replaced(make(care))
    expired_by_hand(care, table, *old_ids(table))
    care.store.catalog.register_table("ns.again", care.load("ns.t").metadata_location)
    before = files_in(table)
    with pytest.raises(SharedLocationError, match=r"ns\.again"):
        reclaimed(care, table)
    assert files_in(table) == before


def test_a_table_that_nobody_can_read_stops_no_other(care, tmp_path):
    table = replaced(make(care))
    expired = expired_by_hand(care, table, *old_ids(table))
    broken = make(care, "other.broken", location=f"{tmp_path}/other")
    Path(broken.metadata_location.removeprefix("file://")).unlink()
    assert reclaimed(care, table).files_removed == len(expired.files)


def test_what_replaced_the_files_is_on_disk_before_they_are_deleted(care):
    table = replaced(make(care))
    expired_by_hand(care, table, *old_ids(table))
    synced: set[int] = set()
    steps: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        if "upkeep.removal.batch.before" not in steps:
            synced.add(os.fstat(handle).st_ino)
        real(handle)

    with pytest.MonkeyPatch.context() as patch, handled(steps.append):
        patch.setattr(os, "fsync", fsync)
        reclaimed(care, table)
    needed = {Path(f.uri.removeprefix("file://")) for f in find_reachable_files(care.store, care.load("ns.t")).values()}
    assert {p.stat().st_ino for p in needed} <= synced
    assert steps.index("tables.sync.after") < steps.index("upkeep.removal.batch.before")


def test_a_crash_at_any_step_hurts_nothing_and_a_later_run_does_the_rest(care):
    table = replaced(make(care))
    for i in old_ids(table):
        expired_by_hand(care, table, i)

    struck = crash_everywhere(lambda: reclaimed(care, table), lambda _: sound(care, table, [1, 2, 3]))
    assert {"upkeep.removal.batch.before", "upkeep.removal.batch.after", "upkeep.reclaim.list.before"} <= set(struck)
    assert listed(care, table) == []
    sound(care, table, [1, 2, 3])
    assert len([f for f in files_in(table) if f.startswith("data/")]) == 1


def test_a_crash_while_a_list_is_made_leaves_none_or_a_whole_one(care):
    table = replaced(make(care))
    for at in ("upkeep.expire.list.before", "upkeep.expire.list.after"):

        def die(name: str, at: str = at) -> None:
            if name == at:
                raise Crash(name)

        with pytest.raises(Crash), handled(die):
            expired_by_hand(care, table, *old_ids(table))
        assert all(e.files and not e.committed for e in listed(care, table))
        reclaimed(care, table)
        sound(care, table, [1, 2, 3])


def test_two_reclaims_at_once_do_each_other_no_harm(care):
    table = replaced(make(care, commits=6))
    for i in old_ids(table):
        expired_by_hand(care, table, i)
    meet = threading.Barrier(2)
    outcomes = []

    def handle(name: str) -> None:
        if name == "upkeep.reclaim.look.after":
            meet.wait(60)

    def work() -> None:
        outcomes.append(reclaimed(care, table))

    with handled(handle):
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [o.result for o in outcomes] == ["done", "done"]
    assert listed(care, table) == []
    sound(care, table, list(range(1, 7)))


def test_a_stop_ends_it_between_two_lists_and_the_rest_waits(care):
    table = replaced(make(care))
    for i in old_ids(table):
        expired_by_hand(care, table, i)
    count = len(listed(care, table))

    def stop(name: str) -> None:
        if name == "upkeep.reclaim.list.after":
            care.stop.set()

    with handled(stop):
        reclaimed(care, table)
    assert len(listed(care, table)) == count - 1
    care.stop.clear()
    reclaimed(care, table)
    assert listed(care, table) == []
    sound(care, table, [1, 2, 3])


def test_a_reader_that_planned_before_reads_on_within_the_grace(care):
    table = make(care)
    tasks = list(table.scan().plan_files())
    replaced(table)
    expired_by_hand(care, table, *old_ids(table))
    reclaimed(care, table, HOUR)
    assert all(Path(task.file.file_path.removeprefix("file://")).exists() for task in tasks)
    from pyiceberg.io.pyarrow import ArrowScan

    scan = ArrowScan(table.metadata, table.io, table.schema(), table.scan().row_filter)
    assert sorted(scan.to_table(tasks)["id"].to_pylist()) == [1, 2, 3]


# The checker.


def test_a_sound_table_is_sound(care):
    table = replaced(make(care))
    verdict = verify(care, table)
    assert (verdict.sound, verdict.findings, verdict.snapshots) == (True, [], len(table.metadata.snapshots))
    assert verdict.files > 8
    assert verdict.size > 0


def damaged(care: UpkeepContext, table, kind: str, how) -> list[tuple[str, str]]:
    uri = next(f.uri for f in find_reachable_files(care.store, table).values() if f.kind == kind)
    how(Path(uri.removeprefix("file://")))
    fresh = care_of(folder(table).parents[2])
    with fresh.store:
        verdict = verify(fresh, table)
    assert not verdict.sound
    return [(Path(f.uri).name, f.message) for f in verdict.findings if Path(f.uri).name == Path(uri).name]


@pytest.mark.parametrize("kind", ["data", "manifest", "manifest list"])
def test_a_missing_file_is_found(care, kind):
    (found,) = damaged(care, make(care), kind, Path.unlink)
    assert found[1] == f"the {kind} file is missing"


@pytest.mark.parametrize("kind", ["manifest", "manifest list"])
def test_rubbish_is_found(care, kind):
    found = damaged(care, make(care), kind, lambda path: path.write_bytes(b"rubbish"))
    assert any(said.startswith("cannot be read") for _, said in found)


def test_a_file_of_another_size_is_found_with_those_who_need_it(care):
    table = make(care)
    path = next(p for p in folder(table).rglob("*.parquet"))
    path.write_bytes(path.read_bytes() + b"!")
    (finding,) = verify(care, table).findings
    assert f"{path.stat().st_size:,} bytes" in finding.message
    assert table.metadata.current_snapshot_id in finding.snapshots
    assert finding.refs == ("main",)


def test_a_former_metadata_file_that_is_gone_is_only_a_warning(care):
    table = make(care)
    Path(table.metadata.metadata_log[0].metadata_file.removeprefix("file://")).unlink()
    verdict = verify(care, table)
    assert verdict.sound
    assert [f.severity for f in verdict.findings] == ["warning"]


def test_a_manifest_that_lost_entries_is_not_believed(care):
    table = make(care)
    manifest = next(f.uri for f in find_reachable_files(care.store, table).values() if f.kind == "manifest")
    path = Path(manifest.removeprefix("file://"))
    (other,) = folder(make(care, "ns.other", commits=1)).rglob("*-m0.avro")
    data = other.read_bytes()
    marker = data[-16:]
    path.write_bytes(data[: data.index(marker) + 16])  # the header alone: a manifest without entries
    fresh = care_of(folder(table).parents[2])
    with fresh.store, pytest.raises(IntegrityError, match="0 entries"):
        find_reachable_files(fresh.store, table)


def frazil(capsys: pytest.CaptureFixture[str], home: Path, *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["table", *args, "--set", f"home={home}"])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_command_that_checks(care, capsys, tmp_path):
    table = make(care)
    code, out, _ = frazil(capsys, tmp_path / "home", "verify", "ns.t")
    assert (code, out.splitlines()[-1]) == (0, "sound")
    next(folder(table).rglob("*.parquet")).unlink()
    code, out, err = frazil(capsys, tmp_path / "home", "verify", "ns.t", "-o", "json")
    told = json.loads(out)
    assert (code, told["sound"], len(told["findings"])) == (13, False, 1)
    assert told["findings"][0]["message"] == "the data file is missing"
    assert "1 fault" in err


def test_the_command_that_expires_says_first_what_it_would_do(care, capsys, tmp_path):
    table = replaced(make(care))
    before = files_in(table)
    code, out, _ = frazil(capsys, tmp_path / "home", "expire", "ns.t", "--keep", "1", "--dry-run", "-o", "json")
    told = json.loads(out)
    assert (code, told["done"], told["snapshots"]) == (0, False, old_ids(table))
    assert told["kinds"]["data"] == 3
    assert told["bytes"] > 0
    code, out, _ = frazil(capsys, tmp_path / "home", "expire", "ns.t", "--dry-run")
    assert (code, out.splitlines()[0]) == (0, "0 snapshots would be expired; 0 files (0 B) are referenced only by them")
    assert files_in(table) == before


def test_an_expiry_by_hand_that_a_pin_holds_back_says_so(care, capsys, tmp_path):
    table = make(care)
    first, second, _ = (s.snapshot_id for s in table.metadata.snapshots)
    table.manage_snapshots().create_tag(second, "frazil-pin-backup-1", 3_600_000).commit()
    code, out, err = frazil(capsys, tmp_path / "home", "expire", "ns.t", "--keep", "1", "--dry-run", "-o", "json")
    told = json.loads(out)
    assert (code, told["snapshots"]) == (0, [first]), "what came before goes on"
    assert [(pin["tag"], pin["holds"]) for pin in told["pins"]] == [("frazil-pin-backup-1", [second])]
    assert "the pin frazil-pin-backup-1 (backup) holds snapshot" in err


def test_an_expiry_by_hand_of_nothing_but_what_pins_hold_is_an_error_and_changes_nothing(care, capsys, tmp_path):
    table = make(care)
    first = table.metadata.snapshots[0]
    table.manage_snapshots().create_tag(first.snapshot_id, "frazil-pin-backup-1", 3_600_000).commit()
    before = files_in(table)
    for options in (["--older-than", "0s"], ["--keep", "1"], ["--keep", "1", "--dry-run"]):
        code, out, err = frazil(capsys, tmp_path / "home", "expire", "ns.t", *options)
        assert (code, out) == (11, "")
        until = datetime.fromtimestamp(first.timestamp_ms / 1000 + 3600, UTC)
        assert f"until {until:%Y-%m-%d %H:%M:%S} UTC" in err and "DROP TAG `frazil-pin-backup-1`" in err
    code, _, err = frazil(capsys, tmp_path / "home", "expire", "ns.t", "--snapshot", str(first.snapshot_id))
    assert code == 2 and "frazil table pins ns.t" in err
    code, out, err = frazil(capsys, tmp_path / "home", "expire", "ns.t", "--set", "upkeep.policy.max_snapshots=1")
    assert code == 0 and "frazil-pin-backup-1" in err, "by the policy the rest of the work goes on"
    assert files_in(table) == before


def test_pins_are_listed_with_the_end_of_their_lease(care, capsys, tmp_path):
    table = make(care)
    current = table.metadata.current_snapshot()
    table.manage_snapshots().create_tag(current.snapshot_id, "frazil-pin-nightly-backup-1a2b", 60_000).commit()
    table.manage_snapshots().create_tag(current.snapshot_id, "release").commit()
    (pin,) = pins(care.load("ns.t"))
    assert (pin.purpose, pin.snapshot_id) == ("nightly-backup", current.snapshot_id)
    assert pin.until.timestamp() * 1000 == pytest.approx(current.timestamp_ms + 60_000, abs=2)
    _, out, _ = frazil(capsys, tmp_path / "home", "pins", "ns.t", "-o", "json")
    assert json.loads(out)[0]["purpose"] == "nightly-backup"
    assert rows(grow(table)) == [1, 2, 3, 4]


def test_a_replay_under_way_reads_every_row_once_while_files_go_at_once(tmp_path):
    """Without any grace: the reader finds a file gone, and plans again."""
    log = MemoryLog()
    topic = TopicTable(log, "orders", settings_in(tmp_path))
    for i in range(12):
        log.publish(*(f"{i}-{j}".encode() for j in range(5)))
        topic.sink()
    care = care_of_settings(settings_in(tmp_path))
    read = topic.reader().read(0)
    seen = next(read).column("offset").to_pylist()
    topic.rewrite()
    with care.store:
        table = care.load(name := topic.name)
        expired_by_hand(care, table, *old_ids(table))
        assert reclaimed(care, table).files_removed > 12
        assert verify(care, care.load(name)).sound
    for more in read:
        seen += more.column("offset").to_pylist()
    assert seen == list(range(60))
