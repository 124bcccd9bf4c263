"""Metrics of `frazil replica run`, in a file for Prometheus' textfile collector."""

from __future__ import annotations

from dataclasses import dataclass

from frazil.observe.textfile import TextfileMetrics


@dataclass(frozen=True)
class ReplicaMetrics:
    """What monitoring knows of one replica.

    Attributes:
        last_success_timestamp_seconds: when a sync last succeeded, whether it found something new or not; 0: never.
        last_attempt_timestamp_seconds: when one was last tried.
        served_timestamp_seconds: when the primary committed the version that is served; 0: none, or not known.
        lag_seconds: age of the oldest version that has begun to arrive and is not served; 0: there is none.
        lag_snapshots: snapshots in such versions that the replica has not.
        max_lag_seconds: by the settings.
        duration_seconds: how long the last sync took.
        files_new: data and delete files that it added.
        missing_files: files that newer versions still need.
        failures: runs that failed since the last success.
    """

    last_success_timestamp_seconds: float = 0.0
    last_attempt_timestamp_seconds: float = 0.0
    served_timestamp_seconds: float = 0.0
    lag_seconds: float = 0.0
    lag_snapshots: float = 0.0
    max_lag_seconds: float = 0.0
    duration_seconds: float = 0.0
    files_new: float = 0.0
    missing_files: float = 0.0
    failures: float = 0.0


_MEANINGS = {
    "last_success_timestamp_seconds": "When a sync of a replica last succeeded; 0: never",
    "last_attempt_timestamp_seconds": "When a sync of a replica was last tried",
    "served_timestamp_seconds": "When the primary committed the version that a replica serves; 0: not known",
    "lag_seconds": "Age of the oldest version that has begun to arrive and is not served; 0: there is none",
    "lag_snapshots": "Snapshots in versions that have begun to arrive, which a replica does not serve",
    "max_lag_seconds": "Lag that the settings allow a replica",
    "duration_seconds": "How long the last sync of a replica took",
    "files_new": "Data and delete files that the last sync of a replica added",
    "missing_files": "Files that newer versions of a replica still need",
    "failures": "Syncs of a replica that failed since its last success",
}
_METRICS = TextfileMetrics("frazil_replica_", "table", ReplicaMetrics, _MEANINGS, "frazil replica run")
read_metrics, write_metrics = _METRICS.read, _METRICS.write
