"""Metrics of `frazil backup run`, in a file for Prometheus' textfile collector."""

from __future__ import annotations

import math
from dataclasses import dataclass

from frazil.observe.textfile import TextfileMetrics


@dataclass(frozen=True)
class PolicyMetrics:
    """What monitoring knows of one policy. Of the last successful backup, where there was one.

    Attributes:
        last_success_timestamp_seconds: when it began; 0: never.
        last_attempt_timestamp_seconds: when a backup was last tried.
        age_seconds: time since it began, when the file was written.
        interval_seconds: longest time between two backups by the schedule.
        duration_seconds: how long it took.
        tables: in it.
        bytes: of the data files that it needs.
        new_bytes: of these, copied by it.
        backups: of this policy in the repository.
        failures: runs that failed since.
    """

    last_success_timestamp_seconds: float = 0.0
    last_attempt_timestamp_seconds: float = 0.0
    age_seconds: float = math.inf
    interval_seconds: float = 0.0
    duration_seconds: float = 0.0
    tables: float = 0.0
    bytes: float = 0.0
    new_bytes: float = 0.0
    backups: float = 0.0
    failures: float = 0.0


_MEANINGS = {
    "last_success_timestamp_seconds": "When the last successful backup of a policy began; 0: never",
    "last_attempt_timestamp_seconds": "When a backup of a policy was last tried",
    "age_seconds": "Time since the last successful backup of a policy began, when the metrics were written",
    "interval_seconds": "Longest time between two backups of a policy by its schedule",
    "duration_seconds": "How long the last successful backup of a policy took",
    "tables": "Tables in the last successful backup of a policy",
    "bytes": "Bytes of the data files of the last successful backup of a policy",
    "new_bytes": "Bytes of the files that the last successful backup of a policy copied",
    "backups": "Backups of a policy in the repository",
    "failures": "Runs of a policy that failed since its last success",
}
_METRICS = TextfileMetrics("frazil_backup_", "policy", PolicyMetrics, _MEANINGS, "frazil backup run")
read_metrics, write_metrics = _METRICS.read, _METRICS.write
