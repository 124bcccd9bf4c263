"""Sinks leave the snapshots that a policy lets stay, and what upkeep shows of that is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.settings import load_settings
from frazil.upkeep.policy import policy_for
from tests.machine import machine_flags
from tests.sink_kit import sink_kit_of

TOPIC = "orders"


@pytest.mark.parametrize(("said", "left"), [(None, 4), ("9", 9), ("2", 4)])
def test_a_sink_leaves_as_many_snapshots_as_the_policy_of_its_table_lets_stay(
    tmp_path: Path, said: str | None, left: int
) -> None:
    flags = {**machine_flags(), "home": str(tmp_path), "log.min_free": "0", "topics.keep_snapshots": "4"}
    flags |= {} if said is None else {"upkeep.tables.topics.*.max_snapshots": said}
    with sink_kit_of(load_settings(flags=flags, environ={})) as kit:
        kit.create(TOPIC)
        engine = kit.engine(TOPIC)
        for i in range(14):
            kit.publish(TOPIC, b"%d" % i)
            engine.catch_up()
        kit.check(TOPIC)
        table = kit.table(TOPIC)
        assert len(table.metadata.snapshots) == left
        policy = policy_for(kit.settings, table)
        assert policy.max_snapshots == int(said or 4)
        assert policy.orphans, "it is one of ours, by its position"
