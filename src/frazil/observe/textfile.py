"""Metrics of a command that ends, in a file for the textfile collector of Prometheus' node exporter.

A family is a dataclass of numbers: one gauge per field, with one label that names what the numbers are of. What a run
does not know stays as an earlier run wrote it, so that the file can be read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from prometheus_client import Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from frazil.atomic_files import write_file
from frazil.observe.metrics import REGISTRY, gauge

T = TypeVar("T")


class TextfileMetrics(Generic[T]):
    """The metrics of one command.

    Args:
        prefix: of their names, such as `frazil_backup_`.
        label: what the numbers are of, such as `policy`.
        values: a dataclass of floats, which all have defaults.
        meanings: a description of each field.
        command: that writes the file.
    """

    def __init__(self, prefix: str, label: str, values: type[T], meanings: Mapping[str, str], command: str) -> None:
        self._prefix, self._label, self._values = prefix, label, values
        self._run_name = f"{prefix}run_timestamp_seconds"
        self._run = gauge(self._run_name, f"When `{command}` last ended, with any result")
        names: Any = fields(values)  # type: ignore[arg-type]
        self._gauges: dict[str, Gauge] = {
            field.name: gauge(f"{prefix}{field.name}", meanings[field.name], label) for field in names
        }

    def read(self, file: Path) -> dict[str, T]:
        """Returns what the file says, by the label; nothing where it is missing or was written by something else."""
        found: dict[str, T] = {}
        try:
            families = list(text_string_to_metric_families(file.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError):
            return {}
        for family in families:
            for sample in family.samples:
                name = sample.name.removeprefix(self._prefix)
                if name in self._gauges and (subject := sample.labels.get(self._label)):
                    before: Any = found.get(subject, self._values())
                    found[subject] = replace(before, **{name: sample.value})
        return found

    def write(self, file: Path, found: Mapping[str, T], ended: datetime) -> None:
        """Replaces the file, which Prometheus may read at any moment and as any user.

        Raises:
            OSError: it cannot be written.
        """
        for name, family in self._gauges.items():
            family.clear()
            for subject, values in found.items():
                family.labels(subject).set(getattr(values, name))
        self._run.set(ended.timestamp())
        names = [self._run_name, *(f"{self._prefix}{name}" for name in self._gauges)]
        file.parent.mkdir(parents=True, exist_ok=True)
        text = b"".join(generate_latest(REGISTRY.restricted_registry([name])) for name in names)
        write_file(file, text, mode=0o644)
