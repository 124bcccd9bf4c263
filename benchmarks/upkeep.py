"""Upkeep: planning, compaction, and the share of a pipeline's time that it takes."""

from __future__ import annotations

from benchmarks import upkeep_compaction, upkeep_planning, upkeep_share
from benchmarks.measure import Result


def run() -> list[Result]:
    return [*upkeep_planning.run(), *upkeep_compaction.run(), *upkeep_share.run()]
