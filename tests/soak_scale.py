"""How long a soak takes, and what is shortened with it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.soak_merge import ACCOUNTS
from tests.soak_process import TOPIC

RATE = 1000
TABLES = (f"topics.{TOPIC}", ACCOUNTS)


@dataclass(frozen=True)
class Scale:
    """A soak of some length: what takes hours or days by default takes a small part of it."""

    seconds: float
    upkeep: bool = True
    by_default: bool = False
    """Everything as by default: nothing is shortened."""

    @property
    def short(self) -> float:
        """As long as messages stay in the table, and files after their last snapshot."""
        return max(10.0, self.seconds / 40)

    @property
    def warm_up(self) -> float:
        """Seconds before anything is measured: until old snapshots and their files go as fast as new ones come."""
        return 120.0 if self.seconds >= 300 and not self.by_default else 0.0

    @property
    def young(self) -> int:
        """Messages that retention does not touch."""
        if self.by_default:
            return 20 * RATE  # all stay; so many are read again and again
        return int(RATE * (self.short * 0.8 if self.seconds >= 300 else self.seconds))

    @property
    def expected(self) -> set[tuple[str, str]]:
        """Steps of upkeep, each of a table, that a soak of that length must have seen."""
        if self.by_default:
            return {(TABLES[0], "compact")}
        return {(table, kind) for table in TABLES for kind in ("compact", "expire", "reclaim")}

    def pauses(self) -> dict[str, float | None]:
        """What is no setting: seconds between expiries by the sink, and before queued files are deleted."""
        if self.by_default:
            return {"expire_every_s": None, "delete_delay_s": None}
        return {"expire_every_s": min(60.0, self.short / 3), "delete_delay_s": min(600.0, self.short)}

    def flags(self) -> dict[str, str]:
        if self.by_default:
            return {"upkeep.enabled": str(self.upkeep).lower()}
        found: dict[str, str] = {}
        if self.seconds < 3600:
            # Counts are times too: a hundred merges take minutes, and all must be in balance after a tenth of it.
            found |= {"upkeep.policy.max_snapshots": "25", "upkeep.policy.metadata_versions": "20"}
        if self.seconds < 300:
            found |= {"topics.keep_snapshots": "15", "upkeep.policy.max_snapshots": "15", "upkeep.share": "0.5"}
        else:
            found |= {"topics.retention_age_s": f"{self.short}"}
        found |= {
            "upkeep.policy.file_grace_s": f"{self.short}",
            "upkeep.policy.orphans": "true",  # of the table that no sink writes too
            "upkeep.policy.orphan_every_s": f"{self.short * 4}",
            "upkeep.every_s": f"{min(20.0, self.short / 4)}",
            "upkeep.turn_s": f"{min(30.0, self.short)}",
            "upkeep.enabled": str(self.upkeep).lower(),
        }
        return found | {"spark.master": "local[2]", "log.retention_age_s": f"{self.short * 3}"}
