"""A restore in a process of its own, which is killed at a step: `python -m tests.restore_victim ORDER`, JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from frazil.observe.faultpoints import handled
from tests.restore_kit import open_repository, restore
from tests.upkeep_files import care_of


def main(order: str) -> None:
    given = json.loads(order)
    steps: list[str] = []

    def strike(step: str) -> None:
        steps.append(step)
        if step == given.get("step") and steps.count(step) == given.get("nth", 1):
            os.kill(os.getpid(), signal.SIGKILL)

    care = care_of(Path(given["home"]))
    with care.store:
        repository = open_repository(care)
        record = repository.read_record("b1")
        with handled(strike):
            report = restore(care, repository, record, given["name"], replace=given["replace"])
    print(json.dumps({"steps": steps, "report": report.to_dict()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
