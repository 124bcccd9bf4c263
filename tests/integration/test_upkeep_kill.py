"""Upkeep killed with -9 at its steps: nothing referred to is lost, no row comes or goes, and the next run ends it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import frazil.upkeep
from frazil.settings import Settings, load_settings
from frazil.tables import ensure_table
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import expired_file_lists, orphans
from frazil.upkeep.expiry.verify import verify
from frazil.upkeep.model import KINDS
from frazil.upkeep.rewrite import partition
from frazil.upkeep.runs.history import History
from frazil.upkeep.runs.run import Limits, run_upkeep
from tests.machine import machine_environment, machine_flags
from tests.rewrite_kit import Bench
from tests.services import process
from tests.upkeep_files import age, litter, step
from tests.upkeep_victim import LEASE_S, SPEC

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

#: Steps after which most is half done: rows written and not committed, committed and not synced, files half deleted.
KILLS = (
    ("retention", "upkeep.retention.rows.after"),
    ("compact", "upkeep.compact.commit.before"),
    ("deletes", "upkeep.deletes.commit.after"),
    ("expire", "upkeep.expire.commit.after"),
    ("reclaim", "upkeep.removal.batch.after"),
    ("orphans", "upkeep.removal.batch.after"),
)
#: What can be done to a table; `zorder` is a compaction of a table of its own, and so is `partition`.
ACTS = (*KINDS, "zorder", "partition", "pin", "history")
LITTER = ("data/lost.parquet", "metadata/lost-m0.avro", "metadata/99999-lost.stats")
POLICY = {
    "min_input_files": "4",
    "delete_files": "3",
    "manifests": "4",
    "max_snapshots": "1",
    "file_grace_s": "0",
    "statistics": "true",
    "orphans": "true",
}
RETENTION = {"retention_column": "at", "retention_age_s": "86400"}
Z_ORDER = {"strategy": "zorder", "sort_by": "id,name"}


@dataclass(frozen=True)
class Victim:
    """A table on which all of upkeep has something to do, in the lane's own embedded catalog.

    Attributes:
        bench: its catalog in this process, whose session ends what a killed one has begun.
        name: of the table in SQL.
        stays: ids of rows that are there whatever happens.
        leaves: ids of rows that retention takes away.
        flags: settings of whoever cares for it.
    """

    bench: Bench
    name: str
    stays: list[int]
    leaves: list[int]
    flags: dict[str, str]

    @property
    def short(self) -> str:
        return self.name.split(".", 1)[1]

    @property
    def care(self) -> UpkeepContext:
        return replace(self.bench.care, settings=load_settings(flags=self.flags, environ={}))

    def run(self, act: str, at: str = "") -> subprocess.CompletedProcess[str]:
        order = {"flags": self.flags, "table": self.short, "act": "compact" if act == "zorder" else act, "step": at}
        return subprocess.run(
            [sys.executable, "-m", "tests.upkeep_victim", json.dumps(order)],
            env={**process._plain_environment(), **machine_environment()},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def check(self) -> None:
        """Every row that must be there is, once, none that was deleted came back, and no file is missing."""
        found = self.bench.ids(self.name)
        assert [i for i in found if i not in self.leaves] == self.stays
        assert len(found) == len(set(found))
        assert verify(self.care, self.bench.load(self.name)).sound

    def waiting(self) -> list[expired_file_lists.ExpiredList]:
        """What is still to be deleted. A list without its commit is dropped after an hour."""
        table = self.bench.load(self.name)
        return [
            expired for expired in expired_file_lists.waiting(self.care.storage_of(table), table) if expired.committed
        ]


def flags_of(settings: Settings, *more: dict[str, str]) -> dict[str, str]:
    policy = {key: value for part in (POLICY, *more) for key, value in part.items()}
    return {
        "home": str(settings.model.home),
        "spark.master": "local[2]",
        **{f"upkeep.policy.{key}": value for key, value in policy.items()},
        **machine_flags(),
    }


@pytest.fixture(scope="module")
def bench(lane_settings: Settings, spark: SparkSession) -> Bench:
    return Bench(lane_settings, lane_settings.catalog().name, spark)


def worn_out(bench: Bench) -> Victim:
    """Small files, position deletes, old rows alone and among others, many manifests and snapshots, and litter."""
    name = bench.table(
        columns=", at TIMESTAMP, part INT",
        partition="part",
        write__distribution_mode="none",
        write__delete__mode="merge-on-read",
        write__delete__granularity="file",
        commit__manifest_merge__enabled="false",
    )

    def write(start: int, rows: int, files: int, part: int, old: str = "false") -> None:
        at = f"current_timestamp() - CASE WHEN {old} THEN INTERVAL '10' DAY ELSE INTERVAL '0' DAY END AS at"
        frame = bench.spark.range(start, start + rows, 1, files)
        frame.selectExpr("id", "concat('person ', id) AS name", at, f"{part} AS part").writeTo(name).append()

    write(0, 30, 3, part=0)
    write(30, 30, 3, part=0)
    write(100, 120, 3, part=1)
    write(300, 10, 1, part=2, old="true")
    write(310, 40, 1, part=2, old="id < 320")
    bench.sql(f"DELETE FROM {name} WHERE part = 1 AND id % 20 = 0")
    bench.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.granularity'='partition')")
    assert len(bench.files(name, content=1)) == 3
    stays = [*range(60), *(i for i in range(100, 220) if i % 20), *range(320, 350)]
    table = bench.load(name)
    litter(table, *LITTER)
    age(table, 10 * 86400.0, *LITTER)
    return Victim(bench, name, stays, list(range(300, 320)), flags_of(bench.settings, RETENTION))


def in_order(bench: Bench) -> Victim:
    """A table that was made with an order, for a Z-order, for partitions, and for what needs no worn one."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    name = bench.table() + "_ordered"
    ensure_table(bench.care.store, name.split(".", 1)[1], schema, sort=["id"])
    bench.insert(name, 0, 10, 20, 30)
    return Victim(bench, name, list(range(40)), [], flags_of(bench.settings, Z_ORDER))


def made_for(bench: Bench, act: str) -> Victim:
    if act in ("zorder", "partition", "pin", "history"):
        return in_order(bench)
    made = worn_out(bench)
    if act == "reclaim":
        assert run_upkeep(made.care, made.short, Limits(kinds=("retention", "compact", "expire"))).changed
    return made


def killed_then_ended(bench: Bench, act: str, at: str) -> None:
    victim = made_for(bench, act)
    victim.check()
    killed = victim.run(act, at)
    assert killed.returncode == -9, (act, at, killed.stderr)
    victim.check()
    if act == "partition":
        assert partition.apply(victim.care, bench.load(victim.name), SPEC, rewrite=True).left == 0
    if act == "pin":
        time.sleep(LEASE_S)
    # Where the expiry was killed, the next run learns that it has landed, and only the one after that deletes.
    for _ in range(3):
        report = run_upkeep(victim.care, victim.short)
        assert not report.errors, (act, at, report.errors)
        victim.check()
        if not report.changed:
            break
    ended(victim)
    if act == "history":
        assert len(History(bench.care.store, f"{victim.short}_history").rows()) <= 1
    bench.sql(f"DROP TABLE {victim.name}")


def ended(victim: Victim) -> None:
    """All is done that the policy asks for, and what the killed one has left is known as such, and can go."""
    bench, table = victim.bench, victim.bench.load(victim.name)
    assert bench.ids(victim.name) == victim.stays
    assert victim.waiting() == []
    assert len(table.metadata.snapshots) == 1
    assert not table.refs().keys() - {"main"}
    assert not {uri for uri in there(victim) if uri.endswith(LITTER)}
    orphans.run(victim.care, table, step("orphans", age_s=-60.0))
    assert bench.on_disk(victim.name) == bench.known(victim.name)
    victim.check()


def there(victim: Victim) -> list[str]:
    table = victim.bench.load(victim.name)
    return [uri for uri, _ in victim.care.storage_of(table).list(table.location())]


@pytest.mark.long("starts Spark once to be killed and once to go on")
@pytest.mark.parametrize(
    ("act", "at"),
    [
        pytest.param(act, at, id=f"{act} at {at}", marks=() if act == "compact" else pytest.mark.deep)
        for act, at in KILLS
    ],
)
def test_upkeep_that_is_killed_loses_nothing_and_is_ended_by_the_next_run(bench: Bench, act: str, at: str) -> None:
    killed_then_ended(bench, act, at)


#: Whose steps the files of the room are that name a step without its kind.
_KINDS_OF_FILES = {
    "rewriting": ("compact",),
    "zorder": ("compact",),
    "partition": ("compact",),
    "statistics": ("stats",),
    "turn": ("retention", "compact", "deletes", "manifests", "metadata", "stats"),
}


def steps_in_source() -> set[str]:
    """The names of all steps that the source can reach."""
    found = {f"upkeep.{kind}" for kind in KINDS}
    for path in Path(frazil.upkeep.__file__).parent.rglob("*.py"):
        text = path.read_text()
        found |= set(re.findall(r'reach\("(upkeep\.[a-z._]+)\.(?:before|after)"\)', text))
        kinds = _KINDS_OF_FILES.get(path.stem, (path.stem,))
        found |= {f"upkeep.{kind}.{name}" for name in re.findall(r'turn\.step\("(\w+)"\)', text) for kind in kinds}
    return {f"{name}.{end}" for name in found for end in ("before", "after")}


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_upkeep_that_is_killed_at_any_step_loses_nothing_and_is_ended_by_the_next_run(bench: Bench) -> None:
    struck: set[str] = set()
    for act in ACTS:
        whole = made_for(bench, act).run(act)
        assert whole.returncode == 0, (act, whole.stderr)
        for at in json.loads(whole.stdout.splitlines()[-1]):
            killed_then_ended(bench, act, at)
            struck.add(at)
    assert struck == steps_in_source()
