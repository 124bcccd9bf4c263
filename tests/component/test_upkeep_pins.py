"""Pins: a lease that was not extended is never told to be, and work that lost its snapshot is told so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.errors import ConflictError, FrazilError
from frazil.tables import CommitUnknownError, commit_retry
from frazil.upkeep import java
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import pins
from frazil.upkeep.expiry.pins import Pin, PinLostError, pin, pinned, release, renew
from tests.upkeep_files import care_of, grow, make

HOUR = 3600.0


class Manage:
    """Java's `manageSnapshots`, by PyIceberg; commits fail as they are told to.

    Attributes:
        failures: what the next commits do: an error, and whether they land before it.
        commits: how many there were.
    """

    def __init__(self, care: UpkeepContext) -> None:
        self._care = care
        self._changes: list[tuple] = []
        self.failures: list[tuple[FrazilError, bool]] = []
        self.commits = 0

    def manageSnapshots(self) -> Manage:
        self._changes = []
        return self

    def createTag(self, tag: str, snapshot_id: int) -> Manage:
        self._changes.append(("create", tag, snapshot_id))
        return self

    def setMaxRefAgeMs(self, tag: str, age: int) -> Manage:
        self._changes.append(("age", tag, age))
        return self

    def removeTag(self, tag: str) -> Manage:
        self._changes.append(("remove", tag, 0))
        return self

    def commit(self) -> None:
        self.commits += 1
        error, lands = self.failures.pop(0) if self.failures else (None, True)
        if lands:
            self._land()
        if error is not None:
            raise error

    def _land(self) -> None:
        table = self._care.load("ns.t")
        _, tag, snapshot_id = self._changes[0]
        ages = [value for what, _, value in self._changes if what == "age"]
        if self._changes[0][0] == "remove":
            table.manage_snapshots().remove_tag(tag).commit()
            return
        if self._changes[0][0] == "age":
            snapshot_id = table.metadata.refs[tag].snapshot_id
        table.manage_snapshots().create_tag(snapshot_id, tag, max_ref_age_ms=ages[0]).commit()


@pytest.fixture
def care(tmp_path: Path) -> Iterator[UpkeepContext]:
    made = care_of(tmp_path / "home")
    with made.store:
        yield made


@pytest.fixture
def manage(care: UpkeepContext, monkeypatch: pytest.MonkeyPatch) -> Manage:
    made = Manage(care)
    monkeypatch.setattr(java, "load", lambda care, table: made)
    monkeypatch.setattr(pins, "needs_jvm", lambda care, table: True)
    return made


def age_of(care: UpkeepContext, held: Pin) -> int | None:
    return care.load(held.table).metadata.refs[held.tag].max_ref_age_ms


def ends(care: UpkeepContext, held: Pin) -> float:
    """When the lease is over, as the table has it."""
    (found,) = [p for p in pins.pins(care.load(held.table)) if p.tag == held.tag]
    return found.until.timestamp()


@pytest.mark.parametrize("error", [ConflictError("lost a race"), CommitUnknownError("no answer")])
@pytest.mark.parametrize("lands", [False, True])
def test_a_renewal_that_lost_its_commit_is_made_again(care, manage, error, lands):
    held = pin(care, make(care), "backup", 60)
    before = age_of(care, held)
    manage.failures = [(error, lands)]
    renewed = renew(care, held, HOUR)
    assert age_of(care, held) >= before + 3500_000
    assert abs(renewed.until.timestamp() - ends(care, held)) < 0.01
    assert manage.commits == (2 if lands else 3)


def test_a_renewal_that_never_gets_through_says_so(care, manage, monkeypatch):
    monkeypatch.setattr(commit_retry, "back_off", lambda attempt: None)
    held = pin(care, make(care), "backup", 60)
    before = age_of(care, held)
    manage.failures = [(ConflictError("lost a race"), False)] * 50
    with pytest.raises(ConflictError):
        renew(care, held, HOUR)
    assert age_of(care, held) == before


def test_a_renewal_of_a_pin_that_goes_meanwhile_says_that_it_is_lost(care, manage):
    table = make(care)
    held = pin(care, table, "backup", 60)

    class GoneError(ConflictError):
        def __init__(self) -> None:
            super().__init__("there is no such tag")
            care.load("ns.t").manage_snapshots().remove_tag(held.tag).commit()

    manage._land = lambda: (_ for _ in ()).throw(GoneError())
    with pytest.raises(PinLostError):
        renew(care, held, HOUR)


@pytest.mark.parametrize("what", ["removed", "moved", "over"])
def test_work_whose_snapshot_was_let_go_between_two_renewals_is_told(care, manage, what):
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


def test_a_pin_that_is_renewed_knows_until_when(care, manage):
    grow(make(care))
    with pinned(care, care.load("ns.t"), "backup", 3.0) as held:
        first, limit = held.pin.until, time.monotonic() + 60
        while held.pin.until <= first and time.monotonic() < limit:
            time.sleep(0.01)
        assert held.pin.until > first
        held.require()
    assert pins.pins(care.load("ns.t")) == []
    release(care, held.pin)


def test_a_pin_of_a_table_that_pyiceberg_can_write_needs_no_jvm(care):
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
