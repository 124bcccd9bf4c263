"""Turns of upkeep without a table or Spark: what is run, in which order, when, and for how long."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from frazil.errors import ConfigError, ConflictError, FrazilError, NotAllowedError, NotFoundError, PartialError
from frazil.settings import load_settings
from frazil.upkeep import metrics
from frazil.upkeep.care import Care
from frazil.upkeep.jobs import Jobs
from frazil.upkeep.model import KINDS, Kind, Outcome, Step
from frazil.upkeep.runs import caretaker as caretaker_module
from frazil.upkeep.runs import run as run_module
from frazil.upkeep.runs.caretaker import TableCaretaker
from frazil.upkeep.runs.many import failure_of, tables_named
from frazil.upkeep.runs.run import Limits, Report, care_for

COMMITTED = Outcome("compact", "done", files_before=10, files_after=1, snapshot_id=7)


class Table:
    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> tuple[str, ...]:
        return tuple(self._name.split("."))


class Stage:
    """A table whose plan is a list, and whose actions are functions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **flags: str) -> None:
        settings = load_settings(flags={"home": "/nowhere", **flags}, environ={})
        self.missing: set[str] = set()
        store = SimpleNamespace(load=self._load)
        self.jobs = Jobs(lambda: pytest.fail("nothing here needs Spark"))
        self.care = Care(settings, settings.catalog(), store, self.jobs, threading.Event())  # type: ignore[arg-type]
        self.plan: list[Step] = []
        self.actions: dict[Kind, Callable[[Step], Outcome]] = {}
        self.ran: list[Kind] = []
        self.looks: list[tuple[str, int | None]] = []
        monkeypatch.setattr(run_module, "look", self._look)
        monkeypatch.setattr(run_module, "action", self._action)
        monkeypatch.setattr(run_module, "back_off", lambda attempt: None)

    def _load(self, name: str) -> Table:
        if name in self.missing:
            raise NotFoundError(f"no table {name}")
        return Table(name)

    def _look(self, care: Care, table: Table, *, budget: int | None = None, **_: Any) -> list[Step]:
        self.looks.append((".".join(table.name()), budget))
        return list(self.plan)

    def _action(self, kind: Kind) -> Any:
        def act(care: Care, table: Table, step: Step) -> Outcome:
            self.ran.append(kind)
            return self.actions[kind](step)

        return act

    def wants(self, kind: Kind, act: Callable[[Step], Outcome] | Outcome, **more: Any) -> Step:
        """Puts a step into the plan, which goes out of it when it is done."""
        step = Step(kind, "because", **more)
        self.plan.append(step)

        def once(given: Step) -> Outcome:
            outcome = act(given) if callable(act) else act
            if outcome.result == "done":
                self.plan.remove(given)
            return outcome

        self.actions[kind] = once
        return step


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def fails(error: Exception) -> Callable[[Step], Outcome]:
    def act(step: Step) -> Outcome:
        raise error

    return act


# -- one run -----------------------------------------------------------------------------------------------------------


def test_every_kind_has_an_action_that_can_be_imported() -> None:
    for kind in KINDS:
        assert callable(run_module.action(kind)), kind


def test_steps_run_in_the_order_of_the_plan_and_each_change_makes_a_new_plan(stage: Stage) -> None:
    stage.wants("compact", COMMITTED)
    stage.wants("expire", Outcome("expire", snapshots_removed=3))
    stage.wants("stats", Outcome("stats", "nothing"))
    report = care_for(stage.care, "a.b")
    assert stage.ran == ["compact", "expire", "stats"]
    assert [o.result for o in report.outcomes] == ["done", "done", "nothing"]
    assert report.changed and not report.unfinished and not report.errors
    assert len(stage.looks) == 3, "once, and after each of the two that changed the table"
    assert [s.kind for s in report.steps] == ["compact", "expire", "stats"], "as first planned"


def test_a_kind_goes_on_while_the_plan_gets_shorter(stage: Stage) -> None:
    left = [3]

    def part(step: Step) -> Outcome:
        left[0] -= 1
        stage.plan[:] = [replace(step, cost=left[0])] if left[0] else []
        return COMMITTED

    stage.plan.append(Step("compact", "because", cost=3))
    stage.actions["compact"] = part
    assert len(care_for(stage.care, "a.b").outcomes) == 3


def test_a_plan_that_stays_the_same_ends(stage: Stage) -> None:
    stage.plan.append(Step("compact", "because"))
    stage.actions["compact"] = lambda step: COMMITTED
    report = care_for(stage.care, "a.b")
    assert stage.ran == ["compact"] and not report.unfinished


def test_one_step_that_fails_does_not_stop_the_others_and_is_counted_and_told(stage: Stage) -> None:
    stage.wants("compact", fails(NotAllowedError("may not write", cause="read only", hint="ask somebody")))
    stage.wants("manifests", fails(ZeroDivisionError("a bug")))
    stage.wants("expire", Outcome("expire", snapshots_removed=1))
    before = metrics.STEPS.labels("a.failing", "compact", "failed")._value.get()
    report = care_for(stage.care, "a.failing")
    assert [o.result for o in report.outcomes] == ["failed", "failed", "done"]
    assert report.outcomes[0].reason == "may not write: read only" and report.outcomes[0].hint == "ask somebody"
    assert "ZeroDivisionError" in report.errors[1].message
    assert metrics.STEPS.labels("a.failing", "compact", "failed")._value.get() == before + 1


def test_a_conflict_is_tried_again_by_hand_and_counted(stage: Stage) -> None:
    answers = [Outcome("compact", "conflict", conflicts=2), COMMITTED]
    stage.wants("compact", lambda step: answers.pop(0))
    [outcome] = care_for(stage.care, "a.b").outcomes
    assert (outcome.result, outcome.conflicts) == ("done", 2)
    stage.wants("compact", Outcome("compact", "conflict"))
    [outcome] = care_for(stage.care, "a.b", Limits(tries=2)).outcomes
    assert (outcome.result, outcome.conflicts) == ("conflict", 2)


def test_only_the_kinds_that_were_asked_for_run_and_only_what_is_urgent(stage: Stage) -> None:
    stage.wants("compact", COMMITTED)
    stage.wants("expire", Outcome("expire", snapshots_removed=1), urgent=True)
    assert [o.kind for o in care_for(stage.care, "a.b", Limits(kinds=["expire"])).outcomes] == ["expire"]
    stage.wants("expire", Outcome("expire", snapshots_removed=1), urgent=True)
    assert [o.kind for o in care_for(stage.care, "a.b", Limits(urgent_only=True)).outcomes] == ["expire"]


def test_no_step_begins_after_the_time_is_over_or_when_told_to_stop(stage: Stage) -> None:
    stage.wants("compact", COMMITTED)
    report = care_for(stage.care, "a.b", Limits(seconds=0.0))
    assert stage.ran == [] and report.unfinished

    def stopping(step: Step) -> Outcome:
        stage.care.stop.set()
        return COMMITTED

    stage.plan.clear()
    stage.wants("compact", stopping)
    stage.wants("expire", Outcome("expire"))
    assert care_for(stage.care, "a.b").unfinished
    assert stage.ran == ["compact"]


def test_a_step_that_was_cancelled_is_no_failure(stage: Stage) -> None:
    def cancelled(step: Step) -> Outcome:
        stage.care.stop.set()
        raise FrazilError("Job aborted")

    stage.wants("compact", cancelled)
    report = care_for(stage.care, "a.b")
    assert report.outcomes == [] and report.errors == [] and report.unfinished


def test_a_dry_run_runs_nothing(stage: Stage) -> None:
    stage.wants("compact", COMMITTED)
    report = care_for(stage.care, "a.b", dry_run=True)
    assert [s.kind for s in report.steps] == ["compact"] and stage.ran == []


def test_what_a_run_over_many_tables_ends_with() -> None:
    bad = NotAllowedError("may not")
    fine = Report("a.fine", outcomes=[COMMITTED])
    assert failure_of([fine, Report("a.idle")]) is None
    assert failure_of([Report("a.bad", errors=[bad])]) is bad
    some = failure_of([fine, Report("a.bad", errors=[bad])])
    assert isinstance(some, PartialError) and "1 of 2" in some.message and "a.bad" in some.message
    lost = failure_of([Report("a.b", outcomes=[Outcome("compact", "conflict")])])
    assert isinstance(lost, ConflictError) and lost.exit_code == 11


def test_an_unknown_table_or_pattern_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.missing.add("a.c")
    with pytest.raises(NotFoundError):
        tables_named(stage.care, ["a.b", "a.c"])
    monkeypatch.setattr("frazil.upkeep.runs.many.list_tables", lambda *_: [("a", "b"), ("x", "y")])
    stage.care.store.call = lambda fn, what: fn()  # type: ignore[method-assign,assignment]
    stage.care.store.catalog = None  # type: ignore[assignment]
    assert tables_named(stage.care, ["a.*", "a.b"]) == ["a.b"]
    with pytest.raises(NotFoundError, match=r"z\.\*"):
        tables_named(stage.care, ["z.*"])


# -- turns -------------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Notes:
    """A history that keeps nothing."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.rows: list[Outcome] = []

    def add(self, run_id: str, table: str, outcome: Outcome, started_at: float) -> None:
        self.rows.append(outcome)

    def flush(self, *, now: bool = False) -> None: ...

    def last(self, table: str) -> dict[Kind, float]:
        return {}


class Turns:
    """A caretaker with settings share 0.1, turn_s 30, every_s 20, whose steps take as long as a test says."""

    def __init__(self, stage: Stage, history: str = "") -> None:
        self.stage, self.clock = stage, Clock()
        self.notes = Notes(history)
        self.takes = 1.0
        self.caretaker = TableCaretaker(stage.care, stage.jobs, self.notes, clock=self.clock)  # type: ignore[arg-type]

    def step(self, outcome: Outcome = COMMITTED, **more: Any) -> None:
        def act(step: Step) -> Outcome:
            self.clock.now += self.takes
            return outcome

        self.stage.wants("compact", act, **more)

    def turn(self, lag_s: float = 0.0) -> bool:
        return self.caretaker.turn(["a.side", "a.main"], lag_s)


@pytest.fixture
def turns(stage: Stage) -> Turns:
    stage.missing.add("a.side")
    return Turns(stage)


def test_a_turn_that_changed_the_table_says_so_and_the_next_look_waits(turns: Turns) -> None:
    turns.step()
    assert turns.turn()
    turns.step()
    assert not turns.turn(), "too early"
    turns.clock.now += 21
    assert turns.turn()
    assert not turns.turn()


def test_upkeep_takes_no_more_than_its_share_of_a_busy_sinks_time(turns: Turns) -> None:
    turns.takes = 8.0
    began, spent = turns.clock.now, 0
    for _ in range(40_000):
        turns.clock.now += 0.25
        if not turns.stage.plan:
            turns.step()
        spent += turns.turn(0.5)
    share = spent * turns.takes / (turns.clock.now - began)
    assert 0.08 < share <= 0.11


def test_what_is_urgent_is_done_though_the_share_is_used_up_or_the_sink_is_behind(turns: Turns) -> None:
    turns.takes = 100.0
    turns.step()
    assert turns.turn()
    turns.step(urgent=True)
    turns.clock.now += 101
    assert turns.turn(), "the share is used up for a thousand seconds"
    turns.step()
    turns.clock.now += 10_000
    assert not turns.turn(lag_s=60), "not urgent, and the sink is behind"
    turns.clock.now += 21
    assert turns.turn(lag_s=0.5)
    turns.step(urgent=True)
    turns.clock.now += 101
    assert turns.turn(lag_s=60)


def test_conflicts_and_failures_double_the_pause_up_to_an_hour_and_success_ends_it(turns: Turns) -> None:
    turns.step(Outcome("compact", "conflict"))
    turns.takes = 0.0
    tried = []
    for _ in range(20_000):
        turns.clock.now += 1
        before = len(turns.stage.ran)
        turns.turn()
        if len(turns.stage.ran) > before:
            tried.append(turns.clock.now)
    pauses = [round(b - a) for a, b in itertools.pairwise(tried)]
    assert pauses[:8] == [20, 40, 80, 160, 320, 640, 1280, 2560]
    assert pauses[8] == 3600
    turns.stage.plan.clear()
    turns.step()
    turns.clock.now += 3600
    assert turns.turn()
    turns.step()
    turns.clock.now += 21
    assert turns.turn(), "the pause is over"


def test_a_policy_that_contradicts_itself_neither_stops_the_sink_nor_is_asked_all_the_time(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def contradictory(care: Care, table: Table, **_: Any) -> list[Step]:
        asked.append(table.name())
        raise ConfigError("upkeep.policy.max_snapshots is below upkeep.policy.min_snapshots")

    monkeypatch.setattr(run_module, "look", contradictory)
    for _ in range(1000):
        turns.clock.now += 1
        assert not turns.turn()
    assert 3 <= len(asked) <= 7


def test_two_sinks_do_not_care_for_one_table_at_once(turns: Turns) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(step: Step) -> Outcome:
        inside.set()
        assert go_on.wait(20)
        return COMMITTED

    turns.stage.wants("compact", slow)
    first = threading.Thread(target=lambda: turns.caretaker.turn(["a.shared"], 0.0))
    first.start()
    assert inside.wait(20)
    assert not turns.caretaker.turn(["a.shared"], 0.0)
    go_on.set()
    first.join()
    assert turns.stage.ran == ["compact"]


def test_however_many_sinks_there_are_two_turns_run_at_once_at_most(turns: Turns) -> None:
    inside, go_on = threading.Semaphore(0), threading.Event()

    def slow(step: Step) -> Outcome:
        inside.release()
        assert go_on.wait(20)
        return COMMITTED

    turns.stage.plan.append(Step("compact", "because"))
    turns.stage.actions["compact"] = slow
    threads = [threading.Thread(target=turns.caretaker.turn, args=([f"a.t{i}"], 0.0)) for i in range(6)]
    for thread in threads:
        thread.start()
    assert inside.acquire(timeout=20) and inside.acquire(timeout=20)
    for thread in threads:
        thread.join(0.5)
    assert sum(thread.is_alive() for thread in threads) == 2, "the others did not wait"
    go_on.set()
    for thread in threads:
        thread.join()
    assert turns.stage.ran == ["compact", "compact"]


def test_the_budget_of_a_turn_follows_the_measured_rate(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    turn_s = turns.stage.care.settings.model.upkeep.turn_s
    monkeypatch.setattr(run_module.time, "monotonic", turns.clock)
    turns.takes = 2.0
    for _ in range(30):
        turns.step(replace(COMMITTED, bytes_rewritten=int(2 * 40e6)))
        turns.clock.now += 300
        assert turns.turn()
    budget = turns.stage.looks[-1][1]
    assert budget is not None
    assert budget == pytest.approx(40e6 * turn_s, rel=0.05)


def test_upkeeps_own_history_is_cared_for_too_but_rarely(stage: Stage) -> None:
    turns = Turns(stage, "frazil.upkeep_history")
    seen: list[float] = []
    for _ in range(2000):
        turns.clock.now += 1
        before = len(stage.looks)
        turns.turn()
        seen += [turns.clock.now for name, _ in stage.looks[before:] if name == "frazil.upkeep_history"]
    assert len(seen) == 3


def test_after_the_end_no_turn_begins(turns: Turns) -> None:
    turns.step()
    turns.caretaker.end()
    assert not turns.turn()
    assert turns.stage.ran == []


def test_nothing_that_upkeep_meets_stops_a_sink(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Report:
        raise RuntimeError("a bug")

    monkeypatch.setattr(caretaker_module, "care_for", broken)
    assert not turns.turn()
