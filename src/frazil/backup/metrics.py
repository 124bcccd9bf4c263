"""Metrics of `frazil backup run`, in a file for Prometheus' textfile collector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path

from prometheus_client import Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from frazil.atomic_files import write_file
from frazil.observe.metrics import REGISTRY, gauge

_RUN_NAME = "frazil_backup_run_timestamp_seconds"
_RUN = gauge(_RUN_NAME, "When `frazil backup run` last ended, whatever came of it")


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
_GAUGES: dict[str, Gauge] = {
    field.name: gauge(f"frazil_backup_{field.name}", _MEANINGS[field.name], "policy") for field in fields(PolicyMetrics)
}


def read_metrics(file: Path) -> dict[str, PolicyMetrics]:
    """Returns what the file says of each policy; nothing where it is missing or is none of ours."""
    found: dict[str, PolicyMetrics] = {}
    try:
        families = list(text_string_to_metric_families(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}
    for family in families:
        for sample in family.samples:
            name = sample.name.removeprefix("frazil_backup_")
            if name in _GAUGES and (policy := sample.labels.get("policy")):
                found[policy] = replace(found.get(policy, PolicyMetrics()), **{name: sample.value})
    return found


def write_metrics(file: Path, policies: Mapping[str, PolicyMetrics], ended: datetime) -> None:
    """Replaces the file, which Prometheus may read at any moment and as any user.

    Raises:
        OSError: it cannot be written.
    """
    for name, family in _GAUGES.items():
        family.clear()
        for policy, values in policies.items():
            family.labels(policy).set(getattr(values, name))
    _RUN.set(ended.timestamp())
    names = [_RUN_NAME, *(f"frazil_backup_{name}" for name in _GAUGES)]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, b"".join(generate_latest(REGISTRY.restricted_registry([name])) for name in names), mode=0o644)
