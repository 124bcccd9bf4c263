"""Cares for a table in a process of its own, and is killed at a step: `python -m tests.upkeep_victim FLAGS TABLE STEP`.

Without a step it runs to its end, and prints every step that it has reached.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from frazil.observe.faultpoints import handled
from frazil.settings import load_settings
from frazil.upkeep.runs.opening import open_care
from frazil.upkeep.runs.run import care_for


def main(flags: str, table: str, step: str = "") -> None:
    reached: list[str] = []

    def strike(here: str) -> None:
        reached.append(here)
        if here == step:
            os.kill(os.getpid(), signal.SIGKILL)

    with open_care(load_settings(flags=json.loads(flags))) as care, handled(strike):
        report = care_for(care, table)
    for error in report.errors:
        raise error
    print(json.dumps([here for here in dict.fromkeys(reached) if here.startswith("upkeep.")]))


if __name__ == "__main__":
    main(*sys.argv[1:])
