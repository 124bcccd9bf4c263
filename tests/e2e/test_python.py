"""A program that uses the library, in a process of its own, with its own Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.conftest import Shell

pytestmark = [pytest.mark.deep, pytest.mark.timeout(300)]

_PROGRAM = """
import frazil

lake = frazil.connect(settings={"log.min_free": 0})
lake.create_topic("orders").publish_batch([b"a", b"b"])
spark = lake.spark()
assert spark.read.format("frazil").option("topic", "orders").load().count() == 2
lake.sql("CREATE NAMESPACE shop")
for number in range(3):
    lake.sql(f"INSERT INTO shop.prices VALUES ({number})" if number else "CREATE TABLE shop.prices AS SELECT 0L AS id")
assert lake.table("shop.prices").compact(min_files=2).files_after == 1
assert lake.spark() is spark
print(lake.sql("SELECT max(id) AS most FROM shop.prices").to_pylist())
"""


@pytest.mark.long("a program of its own starts Spark, and ends without closing anything")
def test_one_session_serves_all_calls_and_ends_with_a_program_that_closes_nothing(shell: Shell):
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=shell.environment(), cwd=shell.folder, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[{'most': 2}]\n"), done.stderr
    assert "LockedError" not in shell.run("topic", "list").stderr
