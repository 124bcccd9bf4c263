"""Turns of upkeep without a table or Spark: what is run, in which order, when, and for how long."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from frazil.errors import (
    ConfigError,
    ConflictError,
    FrazilError,
    NotAllowedError,
    NotFoundError,
    PartialError,
    UnavailableError,
)
from frazil.settings import load_settings
from frazil.upkeep import metrics
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.jobs import Jobs
from frazil.upkeep.model import KINDS, Kind, Outcome, Step
from frazil.upkeep.runs import pipeline_upkeep as caretaker_module
from frazil.upkeep.runs import run as run_module
from frazil.upkeep.runs.history import History
from frazil.upkeep.runs.pipeline_upkeep import PipelineUpkeep
from frazil.upkeep.runs.run import Limits, Report, run_upkeep
from frazil.upkeep.runs.run_many import failure_of, match_tables

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
        self.care = UpkeepContext(settings, settings.catalog(), store, self.jobs, threading.Event())  # type: ignore[arg-type]
        self.plan: list[Step] = []
        self.actions: dict[Kind, Callable[[Step], Outcome]] = {}
        self.ran: list[Kind] = []
        self.looks: list[tuple[str, int | None]] = []
        self.acting: UpkeepContext | None = None
        monkeypatch.setattr(run_module, "plan_steps", self._look)
        monkeypatch.setattr(run_module, "list_notes", lambda *_, **__: [])
        monkeypatch.setattr(run_module, "action", self._action)
        monkeypatch.setattr(run_module, "back_off", lambda attempt: None)

    def _load(self, name: str) -> Table:
        if name in self.missing:
            raise NotFoundError(f"no table {name}")
        return Table(name)

    def _look(self, care: UpkeepContext, table: Table, *, budget: int | None = None, **_: Any) -> list[Step]:
        self.looks.append((".".join(table.name()), budget))
        return list(self.plan)

    def _action(self, kind: Kind) -> Any:
        def act(care: UpkeepContext, table: Table, step: Step) -> Outcome:
            self.ran.append(kind)
            self.acting = care
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
    report = run_upkeep(stage.care, "a.b")
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
    assert len(run_upkeep(stage.care, "a.b").outcomes) == 3


def test_a_plan_that_stays_the_same_ends(stage: Stage) -> None:
    stage.plan.append(Step("compact", "because"))
    stage.actions["compact"] = lambda step: COMMITTED
    report = run_upkeep(stage.care, "a.b")
    assert stage.ran == ["compact"] and not report.unfinished


def test_a_plan_that_differs_by_its_budget_alone_is_the_same(stage: Stage) -> None:
    def again(step: Step) -> Outcome:
        stage.plan[:] = [replace(step, options={"budget": step.options["budget"] - 1})]  # type: ignore[operator]
        return COMMITTED

    stage.plan.append(Step("deletes", "because", options={"budget": 100}))
    stage.actions["deletes"] = again
    report = run_upkeep(stage.care, "a.b")
    assert stage.ran == ["deletes"] and not report.unfinished


def test_a_step_that_brings_nothing_does_not_keep_others_of_its_kind_from_their_turn(stage: Stage) -> None:
    def act(step: Step) -> Outcome:
        if step.cost == 1:
            return Outcome("compact", "nothing")
        stage.plan.remove(step)
        return COMMITTED

    stage.plan += [Step("compact", "because", cost=cost) for cost in (1, 2, 3)]
    stage.actions["compact"] = act
    report = run_upkeep(stage.care, "a.b")
    assert [o.result for o in report.outcomes] == ["nothing", "done", "done"]
    assert not report.unfinished


def test_a_kind_that_fails_is_not_tried_again_in_the_same_run(stage: Stage) -> None:
    stage.plan += [Step("compact", "because", cost=cost) for cost in (1, 2, 3)]
    stage.actions["compact"] = fails(NotAllowedError("may not write"))
    assert [o.result for o in run_upkeep(stage.care, "a.b").outcomes] == ["failed"]


def test_one_step_that_fails_does_not_stop_the_others_and_is_counted_and_told(stage: Stage) -> None:
    stage.wants("compact", fails(NotAllowedError("may not write", cause="read only", hint="ask somebody")))
    stage.wants("manifests", fails(ZeroDivisionError("a bug")))
    stage.wants("expire", Outcome("expire", snapshots_removed=1))
    before = metrics.STEPS.labels("a.failing", "compact", "failed")._value.get()
    report = run_upkeep(stage.care, "a.failing")
    assert [o.result for o in report.outcomes] == ["failed", "failed", "done"]
    assert report.outcomes[0].reason == "may not write: read only" and report.outcomes[0].hint == "ask somebody"
    assert "ZeroDivisionError" in report.errors[1].message
    assert metrics.STEPS.labels("a.failing", "compact", "failed")._value.get() == before + 1


def test_a_conflict_is_tried_again_by_hand_and_counted(stage: Stage) -> None:
    answers = [Outcome("compact", "conflict", conflicts=2), COMMITTED]
    stage.wants("compact", lambda step: answers.pop(0))
    [outcome] = run_upkeep(stage.care, "a.b").outcomes
    assert (outcome.result, outcome.conflicts) == ("done", 2)
    stage.wants("compact", Outcome("compact", "conflict"))
    [outcome] = run_upkeep(stage.care, "a.b", Limits(tries=2)).outcomes
    assert (outcome.result, outcome.conflicts) == ("conflict", 2)


def test_within_limited_time_a_lost_compaction_keeps_no_other_step_from_its_turn(stage: Stage) -> None:
    lost = Outcome("compact", "conflict", conflicts=1)
    stage.wants("compact", lost)
    stage.wants("expire", Outcome("expire", snapshots_removed=3))
    stage.wants("stats", Outcome("stats", snapshot_id=3))
    run_upkeep(stage.care, "a.b", Limits(seconds=60))
    assert stage.ran == ["expire", "compact", "stats"], "what is quick comes first, and what lost is tried once"


def test_the_kind_that_used_up_the_time_comes_last_in_the_next_run(stage: Stage, monkeypatch) -> None:
    """As in a cron job with `--for`: each run is a process of its own, and only the history knows of the last one."""
    clock = [1e9]
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: clock[0], time=lambda: clock[0]))
    history = History(SimpleNamespace(load=fails(NotFoundError("none yet"))), "frazil.upkeep_history")  # type: ignore[arg-type]

    def slow(step: Step) -> Outcome:
        clock[0] += 30
        return Outcome(step.kind, "conflict", conflicts=1)

    for kind in ("compact", "deletes", "stats"):
        stage.wants(kind, slow)
    for _ in range(4):
        clock[0] += 60
        run_upkeep(stage.care, "a.b", Limits(seconds=20), history=history)
    assert stage.ran == ["compact", "deletes", "stats", "compact"]


def test_only_the_kinds_that_were_asked_for_run_and_only_what_is_urgent(stage: Stage) -> None:
    stage.wants("compact", COMMITTED)
    stage.wants("expire", Outcome("expire", snapshots_removed=1), urgent=True)
    assert [o.kind for o in run_upkeep(stage.care, "a.b", Limits(kinds=["expire"])).outcomes] == ["expire"]
    stage.wants("expire", Outcome("expire", snapshots_removed=1), urgent=True)
    assert [o.kind for o in run_upkeep(stage.care, "a.b", Limits(urgent_only=True)).outcomes] == ["expire"]


def test_no_step_begins_after_the_time_is_over_or_when_told_to_stop(stage: Stage) -> None:
    stage.wants("compact", COMMITTED)
    report = run_upkeep(stage.care, "a.b", Limits(seconds=0.0))
    assert stage.ran == [] and report.unfinished

    def stopping(step: Step) -> Outcome:
        stage.care.stop.set()
        return COMMITTED

    stage.plan.clear()
    stage.wants("compact", stopping)
    stage.wants("expire", Outcome("expire"))
    assert run_upkeep(stage.care, "a.b").unfinished
    assert stage.ran == ["compact"]


def test_a_step_that_was_cancelled_is_no_failure(stage: Stage) -> None:
    def cancelled(step: Step) -> Outcome:
        stage.care.stop.set()
        raise FrazilError("Job aborted")

    stage.wants("compact", cancelled)
    report = run_upkeep(stage.care, "a.b")
    assert [o.result for o in report.outcomes] == ["stopped"] and report.errors == [] and report.unfinished
    assert not report.changed


def test_a_dry_run_runs_nothing(stage: Stage) -> None:
    stage.wants("compact", COMMITTED)
    report = run_upkeep(stage.care, "a.b", dry_run=True)
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
        match_tables(stage.care, ["a.b", "a.c"])
    monkeypatch.setattr("frazil.upkeep.runs.run_many.list_tables", lambda *_: [("a", "b"), ("x", "y")])
    stage.care.store.call = lambda fn, what: fn()  # type: ignore[method-assign,assignment]
    stage.care.store.catalog = None  # type: ignore[assignment]
    assert match_tables(stage.care, ["a.*", "a.b"]) == ["a.b"]
    with pytest.raises(NotFoundError, match=r"z\.\*"):
        match_tables(stage.care, ["z.*"])


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

    def tried(self, table: str) -> dict[Kind, float]:
        return {}


class Turns:
    """A caretaker with settings share 0.1, turn_s 30, every_s 20, whose steps take as long as a test says."""

    def __init__(self, stage: Stage, history: str = "") -> None:
        self.stage, self.clock = stage, Clock()
        self.notes = Notes(history)
        self.takes = 1.0
        self.caretaker = PipelineUpkeep(stage.care, stage.jobs, self.notes, clock=self.clock)  # type: ignore[arg-type]

    def step(self, outcome: Outcome = COMMITTED, **more: Any) -> None:
        def act(step: Step) -> Outcome:
            self.clock.now += self.takes
            return outcome

        self.stage.wants("compact", act, **more)

    def turn(self, lag_s: float = 0.0) -> bool:
        return self.caretaker.run_turn(["a.side", "a.main"], lambda: lag_s)


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


def test_where_a_batch_is_due_a_turn_ends_with_the_step_that_runs_and_goes_on_after_the_batch(turns: Turns) -> None:
    turns.stage.wants("expire", Outcome("expire", snapshots_removed=1))
    turns.stage.wants("manifests", Outcome("manifests", snapshot_id=8))
    turns.step()
    assert turns.turn(lag_s=1.5)
    assert turns.stage.ran == ["expire"], "messages should wait no longer than 1 s"
    assert turns.turn(lag_s=0.5), "at once, after the batch"
    assert turns.stage.ran == ["expire", "manifests", "compact"]


def test_where_a_batch_is_due_a_step_that_brings_nothing_does_not_keep_the_others_from_their_turn(turns: Turns) -> None:
    turns.stage.wants("retention", fails(NotAllowedError("may not write")))
    turns.stage.wants("compact", Outcome("compact", "nothing"))
    turns.stage.wants("stats", Outcome("stats", snapshot_id=3))
    assert turns.turn(lag_s=1.5)
    assert turns.stage.ran == ["retention", "compact", "stats"]


def test_on_two_cores_one_table_has_its_turn_at_a_time_and_one_task_writes(stage: Stage) -> None:
    cores = [2]
    caretaker = PipelineUpkeep(stage.care, stage.jobs, Notes(), cores=lambda: cores[0])  # type: ignore[arg-type]
    assert caretaker._allot_tasks() == (1, 1)
    found = []
    for cores[0] in (1, 3, 4, 9):
        found.append(caretaker._allot_tasks())
    assert found == [(1, 1), (2, 1), (2, 1), (2, 4)]
    stage.wants("compact", COMMITTED)
    assert caretaker.run_turn(["a.b"], lambda: 0.0)
    assert stage.acting is not None and stage.acting.tasks == 4, "as many as there are now"


def test_where_a_batch_is_due_the_other_tables_of_a_sink_have_their_turn_after_it(stage: Stage) -> None:
    turns, plans = Turns(stage), {"a.main": [Step("compact", "because")], "a.side": [Step("expire", "because")]}
    stage.actions = {kind: lambda step: COMMITTED for kind in ("compact", "expire")}
    looked: list[str] = []

    def look(care: UpkeepContext, table: Table, **_: Any) -> list[Step]:
        looked.append(".".join(table.name()))
        return plans[looked[-1]]

    run_module.plan_steps = look  # type: ignore[assignment]  # the stage puts it back
    assert turns.turn(lag_s=1.5)
    assert set(looked) == {"a.main"}
    assert turns.turn(lag_s=1.5)
    assert stage.ran == ["compact", "expire"], "the one that had no turn comes first now, however long the plan is"


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


@pytest.mark.parametrize(
    "hindered",
    [Outcome("compact", "conflict"), Outcome("compact", "unsupported"), FrazilError("a neighbour cannot be read")],
    ids=["conflict", "unsupported", "failure"],
)
def test_a_kind_that_does_not_get_through_waits_up_to_an_hour_and_the_others_go_on(
    turns: Turns, hindered: Outcome | FrazilError
) -> None:
    act = fails(hindered) if isinstance(hindered, FrazilError) else hindered
    turns.stage.wants("compact", act)
    turns.takes = 0.0
    tried: list[float] = []
    others: list[float] = []
    for _ in range(20_000):
        turns.clock.now += 1
        before = len(turns.stage.ran)
        if not any(step.kind == "expire" for step in turns.stage.plan):
            turns.stage.wants("expire", Outcome("expire", snapshots_removed=1))
        turns.turn()
        tried += [turns.clock.now] * ("compact" in turns.stage.ran[before:])
        others += [turns.clock.now] * ("expire" in turns.stage.ran[before:])
    pauses = [round(b - a) for a, b in itertools.pairwise(tried)]
    assert pauses[:8] == [20, 40, 80, 160, 320, 640, 1280, 2560]
    assert pauses[8] == 3600
    assert {round(b - a) for a, b in itertools.pairwise(others)} == {20}, "once per every_s, whatever fails beside it"
    turns.stage.plan.clear()
    turns.step()
    turns.clock.now += 3600
    assert turns.turn()
    turns.step()
    turns.clock.now += 21
    assert turns.turn(), "the pause is over"


def test_a_table_that_cannot_be_planned_waits_as_a_whole_and_longer_each_time(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def unreachable(care: UpkeepContext, table: Table, **_: Any) -> list[Step]:
        asked.append(turns.clock.now)
        raise UnavailableError("the catalog does not answer")

    monkeypatch.setattr(run_module, "plan_steps", unreachable)
    with structlog.testing.capture_logs() as logs:
        for _ in range(12_000):
            turns.clock.now += 1
            assert not turns.turn()
    pauses = [round(b - a) for a, b in itertools.pairwise(asked)]
    assert pauses == [20, 40, 80, 160, 320, 640, 1280, 2560, 3600]
    assert {entry["error"] for entry in logs if entry["log_level"] == "warning"} == {"the catalog does not answer"}


def test_a_policy_that_contradicts_itself_neither_stops_the_sink_nor_is_asked_all_the_time(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def contradictory(care: UpkeepContext, table: Table, **_: Any) -> list[Step]:
        asked.append(table.name())
        raise ConfigError("upkeep.policy.max_snapshots is below upkeep.policy.min_snapshots")

    monkeypatch.setattr(run_module, "plan_steps", contradictory)
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
    first = threading.Thread(target=lambda: turns.caretaker.run_turn(["a.shared"], lambda: 0.0))
    first.start()
    assert inside.wait(20)
    assert not turns.caretaker.run_turn(["a.shared"], lambda: 0.0)
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
    threads = [threading.Thread(target=turns.caretaker.run_turn, args=([f"a.t{i}"], lambda: 0.0)) for i in range(6)]
    for thread in threads:
        thread.start()
    assert inside.acquire(timeout=20) and inside.acquire(timeout=20)
    ends = time.monotonic() + 15
    while sum(thread.is_alive() for thread in threads) > 2 and time.monotonic() < ends:
        time.sleep(0.01)
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
    budget = turns.stage.looks[-2][1]
    assert budget is not None, "of the first look of the last turn"
    assert budget == pytest.approx(40e6 * turn_s, rel=0.05)


def test_what_is_left_of_a_turn_is_all_that_its_next_step_may_take(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module.time, "monotonic", turns.clock)
    turns.takes = 15.0
    turns.step()
    assert turns.turn()
    (_, first), (_, second) = turns.stage.looks
    assert first is not None and second == first // 2, "half of the 30 seconds is over"


class Stuck:
    """A step that ends when it is told to, and not before; the clock goes on by `takes` as it begins."""

    def __init__(self, turns: Turns, kind: Kind = "stats", **more: Any) -> None:
        self.turns, self.takes, self.cut = turns, 61.0, 0
        turns.stage.plan.append(Step(kind, "because", **more))
        turns.stage.actions[kind] = self

    def __call__(self, step: Step) -> Outcome:
        self.turns.clock.now += self.takes
        assert self.turns.stage.acting is not None
        assert self.turns.stage.acting.stop.wait(20), "nobody has ended it"
        self.cut += 1
        raise FrazilError("Job cancelled")


def test_a_turn_that_takes_twice_its_time_is_cut_off_counted_and_told_once(turns: Turns) -> None:
    stuck = Stuck(turns)
    counted = metrics.STEPS.labels("a.main", "stats", "stopped")
    before = counted._value.get()
    with structlog.testing.capture_logs() as logs:
        assert not turns.turn()
        turns.clock.now += 2000
        assert not turns.turn()
    assert stuck.cut == 2
    assert counted._value.get() == before + 2
    assert [o.result for o in turns.notes.rows] == ["stopped", "stopped"]
    told = [entry for entry in logs if entry["log_level"] == "warning"]
    assert len(told) == 1 and told[0]["kind"] == "stats" and "60 s" in told[0]["why"]
    assert "--kind stats" in told[0]["hint"]
    assert not turns.stage.care.stop.is_set(), "the pipeline goes on"


def test_a_turn_is_cut_off_earlier_where_messages_wait_and_not_at_all_within_its_time(turns: Turns) -> None:
    stuck = Stuck(turns)
    stuck.takes = 46.0
    assert not turns.caretaker.run_turn(["a.main"], iter([0.0, *[46.0] * 1000]).__next__)
    assert stuck.cut == 1
    turns.clock.now += 2000
    ended = []

    def patient(step: Step) -> Outcome:
        turns.clock.now += 46.0
        assert turns.stage.acting is not None
        ended.append(turns.stage.acting.stop.wait(1.0))
        return Outcome("stats", "nothing")

    turns.stage.actions["stats"] = patient
    turns.turn()
    assert ended == [False], "nobody waits for this sink"


def test_a_kind_that_was_cut_off_waits_longer_each_time_and_the_others_go_on(turns: Turns) -> None:
    stuck = Stuck(turns, urgent=True)
    tried: list[float] = []
    for _ in range(40):
        before = stuck.cut
        turns.step(urgent=True)
        turns.stage.plan.reverse()
        turns.clock.now += 100
        assert turns.turn(), "what is urgent is done at each turn"
        if stuck.cut > before:
            tried.append(turns.clock.now)
    pauses = [b - a for a, b in itertools.pairwise(tried)]
    assert pauses == sorted(pauses) and pauses[-1] > 5 * pauses[0], pauses
    turns.stage.actions["stats"] = lambda step: Outcome("stats", "nothing")
    turns.clock.now += 3600
    turns.turn()
    assert turns.caretaker._states["a.main"].backoffs == {}


def test_a_compaction_that_was_cut_off_takes_in_less_the_next_time(turns: Turns) -> None:
    Stuck(turns, "compact")
    turns.turn()
    turns.clock.now += 2000
    turns.turn()
    (_, first), (_, second) = turns.stage.looks
    assert first is not None and second == pytest.approx(first / 2, rel=0.01)


def test_the_end_of_a_pipeline_ends_a_turn_and_nothing_rests_for_it(turns: Turns) -> None:
    stuck = Stuck(turns)
    stuck.takes = 0.0
    thread = threading.Thread(target=turns.turn)
    thread.start()
    while not turns.stage.ran:
        time.sleep(0.01)
    turns.caretaker.stop()
    thread.join(20)
    assert not thread.is_alive() and stuck.cut == 1
    assert turns.caretaker._states["a.main"].backoffs == {}


def test_one_call_does_not_go_on_with_another_table_when_its_time_is_over(turns: Turns) -> None:
    turns.stage.missing.clear()
    turns.takes = 31.0
    turns.step()
    assert turns.turn()
    assert {name for name, _ in turns.stage.looks} == {"a.main"}
    turns.clock.now += 1000
    turns.turn()
    assert {name for name, _ in turns.stage.looks} == {"a.main", "a.side"}


def test_by_hand_nothing_is_cut_off(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(run_module.time, "monotonic", clock)

    def slow(step: Step) -> Outcome:
        clock.now += 61.0
        assert stage.acting is not None and not stage.acting.stop.wait(0.6)
        return Outcome("stats", "nothing")

    stage.wants("stats", slow)
    assert [o.result for o in run_upkeep(stage.care, "a.b", Limits(seconds=30.0)).outcomes] == ["nothing"]


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
    turns.caretaker.stop()
    assert not turns.turn()
    assert turns.stage.ran == []


def test_nothing_that_upkeep_meets_stops_a_sink(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Report:
        raise RuntimeError("a bug")

    monkeypatch.setattr(caretaker_module, "run_upkeep", broken)
    assert not turns.turn()
