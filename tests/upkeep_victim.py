"""Upkeep in a process of its own, which is killed at a step: `python -m tests.upkeep_victim ORDER`.

The order is JSON: `flags` of the settings, the `table`, what to do (`act`: a kind of step, `partition`, `pin` or
`history`), and the `step` to be killed at. Without a step it runs to its end, and prints the steps that it has reached.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from frazil.observe.faultpoints import handled
from frazil.settings import load_settings
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry.pins import pin, release
from frazil.upkeep.model import Outcome
from frazil.upkeep.rewrite import partition
from frazil.upkeep.runs.history import History
from frazil.upkeep.runs.open_context import open_context
from frazil.upkeep.runs.run import Limits, run_upkeep

#: What the partition of a table becomes.
SPEC = "bucket(2, id)"
#: Seconds that a pin of somebody who was killed stays.
LEASE_S = 1.0


def act(care: UpkeepContext, table: str, what: Any) -> None:
    match what:
        case "partition":
            for outcome in partition.apply(care, care.load(table), SPEC, rewrite=True).outcomes:
                assert outcome.result == "done", outcome
        case "pin":
            release(care, pin(care, care.load(table), "test", LEASE_S))
        case "history":
            history = History(care.store, f"{table}_history")
            history.add("run", table, Outcome("compact"), 0.0)
            history.flush(now=True)
        case _:
            report = run_upkeep(care, table, Limits(kinds=(what,)))
            for error in report.errors:
                raise error


def main(order: str) -> None:
    given = json.loads(order)
    reached: list[str] = []

    def strike(here: str) -> None:
        reached.append(here)
        if here == given["step"]:
            os.kill(os.getpid(), signal.SIGKILL)

    with open_context(load_settings(flags=given["flags"], environ={})) as care, handled(strike):
        act(care, given["table"], given["act"])
    print(json.dumps([here for here in dict.fromkeys(reached) if here.startswith("upkeep.")]))


if __name__ == "__main__":
    main(*sys.argv[1:])
