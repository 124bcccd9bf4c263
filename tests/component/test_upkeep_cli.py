"""`frazil upkeep` in this process, without a JVM: what it prints, what it refuses, and which exit codes it gives."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from pyiceberg.table import Table

from frazil.cli.run import run_command
from frazil.upkeep.model import Outcome
from frazil.upkeep.runs.history import History
from tests.tables import append, embedded, make_table, open_store
from tests.upkeep_files import age, care_of, folder, litter, make

HISTORY = "frazil.upkeep_history"


class Cli:
    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.home, self._capfd = home, capfd

    def __call__(self, *args: str) -> tuple[int, str, str]:
        self._capfd.readouterr()
        code = run_command("upkeep", "upkeep", [*args, "--set", f"home={self.home}"])
        out, errors = self._capfd.readouterr()
        return code, out, errors

    def json(self, *args: str) -> Any:
        code, out, errors = self(*args, "--output", "json")
        assert code == 0, errors
        return json.loads(out)

    def fails(self, *args: str, code: int, says: str) -> None:
        got, _, errors = self(*args)
        assert got == code, errors
        assert "error: " in errors and "Try: " in errors and "Traceback" not in errors
        assert says in errors


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """A table of 15 tiny commits, and another that is empty."""
    with open_store(embedded(tmp_path)) as store:
        table = make_table(store, "shop.clicks")
        for _ in range(15):
            table = append(store, table).table
        make_table(store, "shop.views")
    yield Cli(tmp_path, capfd)
    structlog.reset_defaults()


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(cli: Cli) -> None:
    with open_store(embedded(cli.home)) as store:
        before = store.load("shop.clicks").metadata_location
    found = {report["table"]: report for report in cli.json("run", "shop.*", "--dry-run")}
    assert found.keys() == {"shop.clicks", "shop.views"}
    [compact] = [step for step in found["shop.clicks"]["steps"] if step["kind"] == "compact"]
    assert compact["why"] and compact["gain"]["files"] > 0
    assert found["shop.views"] == {"table": "shop.views", "steps": [], "notes": [], "errors": []}
    only = cli.json("run", "shop.clicks", "--kind", "expire", "--dry-run")
    assert [s["kind"] for s in only[0]["steps"] if s["kind"] != "expire"] == []
    code, out, _ = cli("run", "shop.clicks", "--dry-run")
    assert code == 0 and "compact" in out
    with open_store(embedded(cli.home)) as store:
        assert store.load("shop.clicks").metadata_location == before


def test_a_run_over_tables_that_need_nothing_starts_no_jvm(cli: Cli) -> None:
    [report] = cli.json("run", "shop.views")
    assert report["outcomes"] == [] and report["unfinished"] is False


def foreign(home: Path) -> Table:
    """A table that another engine has made, with a file that nothing knows."""
    table = make(care_of(home), "else.t")
    litter(table, "data/lost.parquet")
    age(table)
    return table


def test_orphans_of_a_table_that_others_made_are_removed_on_request_only(cli: Cli) -> None:
    table = foreign(cli.home)
    lost = folder(table) / "data/lost.parquet"
    [report] = cli.json("plan", "else.*")
    assert "orphans" not in [step["kind"] for step in report["steps"]]
    [note] = report["notes"]
    assert "on request only" in note and "--kind orphans" in note
    code, _, errors = cli("plan", "else.*")
    assert code == 0 and f"else.t: {note}" in errors
    [report] = cli.json("plan", "else.t", "--kind", "orphans")
    assert [step["kind"] for step in report["steps"]] == ["orphans"] and report["notes"] == []
    said = ("--set", "upkeep.tables.else.*.orphans=true")
    [report] = cli.json("plan", "else.t", *said)
    assert "orphans" in [step["kind"] for step in report["steps"]] and report["notes"] == []
    mute = ("--set", "upkeep.policy.orphans=false")
    assert [report["steps"] for report in cli.json("plan", "else.t", "--kind", "orphans", *mute)] == [[]]
    assert lost.exists()
    [report] = cli.json("run", "else.t", "--kind", "reclaim")
    assert lost.exists() and report["outcomes"] == []
    [report] = cli.json("run", "else.t", "--kind", "orphans")
    assert [(o["kind"], o["files_removed"]) for o in report["outcomes"]] == [("orphans", 1)]
    assert not lost.exists()


def test_the_orphans_of_a_sinks_table_need_no_request(cli: Cli) -> None:
    [report] = cli.json("plan", "shop.clicks")
    assert "orphans" in [step["kind"] for step in report["steps"]] and report["notes"] == []


def test_a_plan_says_which_pin_holds_what_and_until_when(cli: Cli) -> None:
    with open_store(embedded(cli.home)) as store:
        table = store.load("shop.clicks")
        with table.manage_snapshots() as refs:
            refs.create_tag(table.metadata.snapshots[2].snapshot_id, "frazil-pin-backup-1", 3_600_000)
    few = ("--set", "upkeep.policy.max_snapshots=5")
    [report] = cli.json("plan", "shop.clicks", *few)
    [note] = report["notes"]
    assert "8 snapshots stay" in note and "frazil-pin-backup-1 (backup)" in note and " UTC" in note
    [expire] = [step for step in report["steps"] if step["kind"] == "expire"]
    assert expire["gain"]["snapshots"] == 2, "those before the pin go all the same"
    code, _, errors = cli("run", "shop.clicks", "--kind", "expire", "--dry-run", *few)
    assert code == 0 and note in errors
    assert cli.json("plan", "shop.clicks", "--kind", "compact", *few)[0]["notes"] == []


@pytest.mark.parametrize("command", ["plan", "status"])
def test_a_policy_for_a_table_that_is_not_there_is_told_and_no_error(cli: Cli, command: str) -> None:
    typo = ("--set", "upkeep.tables.shp.*.compact=false", "--set", "upkeep.tables.shop.click.compact=false")
    code, _, errors = cli(command, "shop.clicks", *typo, "--set", "upkeep.tables.shop.v*.compact=false")
    assert code == 0
    assert [line.split("'")[1] for line in errors.splitlines() if "names no table" in line] == ["shp.*", "shop.click"]
    assert "'shp.*' (flag --set upkeep.tables.shp.*.compact) names no table of the catalog" in errors
    code, _, errors = cli(command, "shop.clicks")
    assert code == 0 and "names no table" not in errors


def test_history_and_status_work_without_a_pipeline(cli: Cli) -> None:
    assert cli.json("history") == []
    assert cli.json("status") == []
    with open_store(embedded(cli.home)) as store:
        history, now = History(store, HISTORY), time.time()
        history.add("r1", "shop.clicks", Outcome("compact", files_before=20, files_after=1, seconds=36.0), now - 3600)
        lost = Outcome("expire", "conflict", conflicts=2, seconds=36.0, reason="another was faster")
        history.add("r2", "shop.clicks", lost, now - 1800)
        history.flush(now=True)
    rows = cli.json("history", "shop.clicks", "--limit", "1")
    [row] = rows
    assert (row["kind"], row["result"], row["reason"]) == ("expire", "conflict", "another was faster")
    assert cli.json("history", "--since", "40m") == rows
    assert cli.json("history", "shop.views") == []
    [status] = cli.json("status")
    assert status["table"] == "shop.clicks"
    assert (status["last_kind"], status["last_result"], status["conflicts"]) == ("expire", "conflict", 2)
    assert status["share"] == pytest.approx(0.02, abs=0.002), "72 seconds of an hour"
    assert "compact" in status["steps"] and status["next_due"] is not None
    code, out, _ = cli("status", "shop.*")
    assert code == 0 and "2.0%" in out and "shop.views" in out


def test_bad_input_is_told_and_changes_nothing(cli: Cli) -> None:
    cli.fails("run", "shop.clickz", code=10, says="shop.clicks")
    cli.fails("run", "nowhere.*", code=10, says="nowhere.*")
    cli.fails("run", "shop.clicks", "--kind", "compcat", code=2, says="compact")
    cli.fails("run", "shop.clicks", "--for", "soon", code=2, says="a duration")
    cli.fails("history", "--set", "upkeep.history=none", code=2, says="the history of upkeep is disabled")
    cli.fails("history", "--set", "upkeep.history=here", code=2, says="namespace.table")
    contradiction = ("--set", "upkeep.policy.min_snapshots=9", "--set", "upkeep.policy.max_snapshots=3")
    for name in ("run", "status"):
        cli.fails(name, "shop.clicks", *contradiction, code=2, says="min_snapshots")
    cli.fails("run", "shop.clicks", "--set", "upkeep.policy.target_file_size=0", code=2, says="target_file_size")
