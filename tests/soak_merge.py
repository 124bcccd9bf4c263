"""The table of the soak that is merged into all the time, by a job that knows nothing of upkeep and races it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACCOUNTS = "soak.accounts"
ROWS = 2000
#: The row that says how many merges a snapshot has.
MARK = 0
#: Words of Iceberg and Spark for a commit that lost against another one.
CONFLICTS = ("ValidationException", "CommitFailedException")


class Oracle:
    """What the table holds after a number of merges. Everybody who counts the merges comes to the same rows."""

    def __init__(self) -> None:
        self.merges = 0
        self.rows = dict.fromkeys(range(1, ROWS + 1), 0) | {MARK: 0}
        self.gone: set[int] = set()
        """Rows that a merge has deleted. No id is used again."""
        self._next = ROWS + 1

    def advance(self) -> list[tuple[int, int, bool]]:
        """The next merge: (id, new value, whether the row goes)."""
        self.merges += 1
        chance = random.Random(self.merges)
        there = sorted(self.rows.keys() - {MARK})
        chosen = chance.sample(there, 80)
        changes = [(i, self.merges, False) for i in chosen[:60]] + [(i, 0, True) for i in chosen[60:]]
        changes += [(self._next + i, self.merges, False) for i in range(20)]
        self._next += 20
        changes.append((MARK, self.merges, False))
        for i, value, goes in changes:
            if goes:
                del self.rows[i]
                self.gone.add(i)
            else:
                self.rows[i] = value
        return changes

    def check(self, rows: list[dict[str, int]], at_least: int = 0) -> None:
        """Rows of a snapshot, which is not older than the last one: those after as many merges as its mark says."""
        found = {row["id"]: row["value"] for row in rows}
        assert len(found) == len(rows), "a row is doubled"
        assert found[MARK] >= max(at_least, self.merges), (
            f"the table went back: {found[MARK]}, {self.merges}, {at_least}"
        )
        while self.merges < found[MARK]:
            self.advance()
        came_back = found.keys() & self.gone
        assert not came_back, f"deleted rows came back: {sorted(came_back)[:10]}"
        assert found == self.rows


def make_accounts(spark: SparkSession, catalog: str) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.soak")
    modes = ", ".join(f"'write.{what}.mode'='merge-on-read'" for what in ("delete", "update", "merge"))
    spark.sql(
        f"CREATE TABLE {catalog}.{ACCOUNTS} (id BIGINT, value BIGINT, note STRING) USING iceberg "
        f"TBLPROPERTIES ('format-version'='2', {modes})"
    )
    spark.sql(f"INSERT INTO {catalog}.{ACCOUNTS} SELECT id, 0, CAST(uuid() AS STRING) FROM range(0, {ROWS + 1})")


def merging(spark: SparkSession, catalog: str, every: float, tell: Callable[..., None], stop: threading.Event) -> None:
    """Merges again and again; one that loses against upkeep is run anew, as a job with retries does.

    It may run twice without harm: what it deletes, it does not insert.
    """
    oracle, lost = Oracle(), 0
    due = time.monotonic()
    while not stop.is_set():
        changes = ", ".join(f"({i}, {value}, {str(goes).lower()})" for i, value, goes in oracle.advance())
        usual = timed(lambda: spark.sql("SELECT sum(id % 7) FROM range(0, 300000, 1, 2)").collect())
        while not stop.is_set():
            began = time.monotonic()
            try:
                spark.sql(
                    f"MERGE INTO {catalog}.{ACCOUNTS} t USING (SELECT * FROM VALUES {changes} AS s(id, value, goes)) s "
                    "ON t.id = s.id WHEN MATCHED AND s.goes THEN DELETE WHEN MATCHED THEN UPDATE SET t.value = s.value "
                    "WHEN NOT MATCHED AND NOT s.goes THEN INSERT (id, value, note) VALUES (s.id, s.value, 'new')"
                )
            except Exception as error:
                if not any(word in str(error) for word in CONFLICTS):
                    raise
                lost += 1
                tell(merge_conflicts=lost)
                continue
            tell(merge=oracle.merges, seconds=time.monotonic() - began, usual=usual)
            break
        due = max(due + every, time.monotonic())
        stop.wait(max(0.0, due - time.monotonic()))


def timed(action: Callable[[], object]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began
