"""Pins: a lease that was not extended is never told to be, and work that lost its snapshot is told so."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyiceberg.table import Table

from frazil.backup.source import load_source, pinned_head
from frazil.catalogs import local_path
from frazil.errors import ConflictError, IntegrityError, NotFoundError, UsageError
from frazil.observe.faultpoints import handled
from frazil.tables import CommitUnknownError, commit_retry
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import pins
from frazil.upkeep.expiry.pins import Pin, PinLostError, pin, pinned, release, renew
from tests.publishing_kit import metadata_of, prepare
from tests.upkeep_files import care_of, files_in, grow, make

HOUR = 3600.0


@dataclass
class Commits:
    """Commits of tags, which fail as they are told to.

    Attributes:
        failures: what the next commits do: an error, and whether they land before it.
        number: how many there were.
    """

    failures: list[tuple[Exception, bool]] = field(default_factory=list)
    number: int = 0


@pytest.fixture
def care(tmp_path: Path) -> Iterator[UpkeepContext]:
    made = care_of(tmp_path / "home")
    with made.store:
        yield made


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    made, real = Commits(), pins._TagChange.commit

    def commit(change: pins._TagChange, care: UpkeepContext, table: Table) -> None:
        made.number += 1
        error, lands = made.failures.pop(0) if made.failures else (None, True)
        if lands:
            real(change, care, table)
        if error is not None:
            raise error

    monkeypatch.setattr(pins._TagChange, "commit", commit)
    return made


def upgrade(care: UpkeepContext, table: Table) -> Table:
    """Makes a table one of format version 3, which PyIceberg reads and does not write."""
    path = Path(local_path(table.metadata_location) or "")
    metadata = {**json.loads(path.read_bytes()), "format-version": 3, "next-row-id": 0}
    metadata["properties"] = {**metadata["properties"], "write.metadata.previous-versions-max": "3"}
    metadata["of-later-versions"] = {"kept": True}
    path.write_text(json.dumps(metadata))
    return care.load(".".join(table.name()))


def age_of(care: UpkeepContext, held: Pin) -> int | None:
    return care.load(held.table).metadata.refs[held.tag].max_ref_age_ms


def ends(care: UpkeepContext, held: Pin) -> float:
    """When the lease is over, as the table has it."""
    (found,) = [p for p in pins.pins(care.load(held.table)) if p.tag == held.tag]
    return found.until.timestamp()


@pytest.mark.parametrize("error", [ConflictError("lost a race"), CommitUnknownError("no answer")])
@pytest.mark.parametrize("lands", [False, True])
def test_a_renewal_that_lost_its_commit_is_made_again(care, commits, error, lands):
    held = pin(care, make(care), "backup", 60)
    before = age_of(care, held)
    commits.failures = [(error, lands)]
    renewed = renew(care, held, HOUR)
    assert age_of(care, held) >= before + 3500_000
    assert abs(renewed.until.timestamp() - ends(care, held)) < 0.01
    assert commits.number == (2 if lands else 3)


def test_a_renewal_that_never_gets_through_says_so(care, commits, monkeypatch):
    monkeypatch.setattr(commit_retry, "back_off", lambda attempt: None)
    held = pin(care, make(care), "backup", 60)
    before = age_of(care, held)
    commits.failures = [(ConflictError("lost a race"), False)] * 50
    with pytest.raises(ConflictError):
        renew(care, held, HOUR)
    assert age_of(care, held) == before


def test_a_renewal_of_a_pin_that_goes_meanwhile_says_that_it_is_lost(care, monkeypatch):
    table = make(care)
    held = pin(care, table, "backup", 60)

    def commit(*_: object) -> None:
        care.load("ns.t").manage_snapshots().remove_tag(held.tag).commit()
        raise ConflictError("there is no such tag")

    monkeypatch.setattr(pins._TagChange, "commit", commit)
    with pytest.raises(PinLostError):
        renew(care, held, HOUR)


@pytest.mark.parametrize("what", ["removed", "moved", "over"])
def test_work_whose_snapshot_was_let_go_between_two_renewals_is_told(care, what):
    table = make(care)
    with pinned(care, table, "backup", HOUR) as held:
        held.require()
        tag = held.pin.tag
        change = care.load("ns.t").manage_snapshots()
        if what == "removed":
            change.remove_tag(tag).commit()
        elif what == "moved":
            change.create_tag(table.metadata.snapshots[0].snapshot_id, tag, max_ref_age_ms=10**12).commit()
        else:
            change.create_tag(held.pin.snapshot_id, tag, max_ref_age_ms=1).commit()
            time.sleep(0.01)
        with pytest.raises(PinLostError, match="not held any more"):
            held.require()


def test_a_pin_that_is_renewed_knows_until_when(care):
    grow(make(care))
    with pinned(care, care.load("ns.t"), "backup", 3.0) as held:
        first, limit = held.pin.until, time.monotonic() + 60
        while held.pin.until <= first and time.monotonic() < limit:
            time.sleep(0.01)
        assert held.pin.until > first
        held.require()
    assert pins.pins(care.load("ns.t")) == []
    release(care, held.pin)


def test_a_pin_needs_no_jvm(care):
    grow(make(care))
    before = care.load("ns.t").metadata
    with pinned(care, care.load("ns.t"), "backup", HOUR) as held:
        grow(care.load("ns.t"))
        held.pin = renew(care, held.pin, 2 * HOUR)
        held.require()
        assert [p.snapshot_id for p in pins.pins(care.load("ns.t"))] == [before.current_snapshot_id]
    after = care.load("ns.t").metadata
    assert set(after.refs) == {"main"}
    assert len(after.snapshots) == len(before.snapshots) + 1


def test_a_pin_of_a_table_of_format_version_3_changes_nothing_else(care):
    upgrade(care, make(care))
    before = metadata_of(care.store.catalog, "ns.t")
    locations = [care.load("ns.t").metadata_location]
    with pinned(care, care.load("ns.t"), "backup", HOUR) as held:
        locations.append(care.load("ns.t").metadata_location)
        held.pin = renew(care, held.pin, 2 * HOUR)
        locations.append(care.load("ns.t").metadata_location)
        (found,) = pins.pins(care.load("ns.t"))
        assert (found.tag, found.until) == (held.pin.tag, held.pin.until)
        held.require()
    after = metadata_of(care.store.catalog, "ns.t")
    changed = ("metadata-log", "last-updated-ms")
    assert {k: v for k, v in after.items() if k not in changed} == {k: v for k, v in before.items() if k not in changed}
    assert [entry["metadata-file"] for entry in after["metadata-log"]] == locations
    assert after["last-updated-ms"] > before["last-updated-ms"]


@pytest.mark.parametrize("faster", ["once", "always"])
def test_a_pin_of_a_table_of_format_version_3_undoes_no_commit_of_another_writer(care, monkeypatch, faster):
    monkeypatch.setattr(commit_retry, "back_off", lambda attempt: None)
    table = upgrade(care, make(care))
    before = files_in(table)
    others = []

    def strike(step: str) -> None:
        if (
            step == "tables.publish.before"
            and threading.current_thread() is this
            and (faster == "always" or not others)
        ):
            others.append(step)
            commit_property(care, f"n{len(others)}")

    this = threading.current_thread()
    with handled(strike):
        if faster == "once":
            held = pin(care, table, "backup", HOUR)
            assert held.tag in care.load("ns.t").metadata.refs
        else:
            with pytest.raises(ConflictError):
                pin(care, table, "backup", HOUR)
    properties = care.load("ns.t").properties
    assert all(f"n{number}" in properties for number in range(1, len(others) + 1))
    assert len(others) == (1 if faster == "once" else 10)
    pinned_at = care.load("ns.t").metadata_location if faster == "once" else table.metadata_location
    there = {name for name in files_in(table) if name.endswith(".json") and "prepared-" not in name}
    assert there - before <= {f"metadata/{Path(pinned_at).name}"}, "a lost race leaves no file behind"


def test_a_pin_whose_commit_got_no_answer_keeps_its_metadata_file(care, monkeypatch):
    table = upgrade(care, make(care))
    written: list[str] = []

    def publish(store: object, plan: object, path: str, metadata: object) -> None:
        written.append(path)
        raise CommitUnknownError("no answer")

    monkeypatch.setattr(pins, "publish", publish)
    with pytest.raises(CommitUnknownError):
        pins._TagChange("frazil-pin-x-1", table.metadata.current_snapshot_id, 60_000).commit(care, table)
    assert Path(local_path(written[0]) or "").exists()


@pytest.mark.parametrize("error", [IntegrityError("damaged"), UsageError("does not fit"), CommitUnknownError("?")])
def test_a_backup_of_format_version_3_goes_on_where_no_pin_can_be_set(care, monkeypatch, error):
    def publish(*_: object) -> None:
        raise error

    monkeypatch.setattr(commit_retry, "back_off", lambda attempt: None)
    table = upgrade(care, make(care))
    monkeypatch.setattr(pins, "publish", publish)
    with pinned_head(care, load_source(care, "ns.t"), table.metadata.current_snapshot_id) as is_pinned:
        assert not is_pinned
    with pytest.raises(NotFoundError), pinned_head(care, load_source(care, "ns.t"), 1):
        pass


def test_a_length_of_the_metadata_log_that_is_no_number_counts_as_not_set(care):
    table = upgrade(care, make(care))
    path = Path(local_path(table.metadata_location) or "")
    path.write_text(path.read_text().replace('"write.metadata.previous-versions-max": "3"',
                                             '"write.metadata.previous-versions-max": "many"'))  # fmt: skip
    held = pin(care, care.load("ns.t"), "backup", HOUR)
    assert held.tag in care.load("ns.t").metadata.refs


def commit_property(care: UpkeepContext, name: str) -> None:
    """A commit of another writer, which PyIceberg cannot make in format version 3."""
    identifier = ("ns", "t")
    pointer = care.load("ns.t").metadata_location
    metadata = metadata_of(care.store.catalog, "ns.t")
    location, metadata = prepare(care.store.catalog, {**metadata, "properties": {**metadata["properties"], name: "x"}})
    care.store.catalog.move_pointer(identifier, pointer, location, metadata)
