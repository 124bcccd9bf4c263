"""The product's metrics: one registry, and a description of each that the docs are checked against.

A room declares its metrics where it uses them, with `counter` or `gauge`, so that none escapes `describe`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

REGISTRY = CollectorRegistry(auto_describe=True)


@dataclass(frozen=True)
class Metric:
    """One metric as a reader of the docs, or of a dashboard, knows it."""

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    help: str


_declared: dict[str, Metric] = {}


def counter(name: str, description: str, *labels: str) -> Counter:
    """Declares a counter. Its name ends in `_total`."""
    _declared[name] = Metric(name, "counter", labels, description)
    return Counter(name, description, labels, registry=REGISTRY)


def gauge(name: str, description: str, *labels: str) -> Gauge:
    """Declares a gauge."""
    _declared[name] = Metric(name, "gauge", labels, description)
    return Gauge(name, description, labels, registry=REGISTRY)


def describe() -> list[Metric]:
    """Lists the declared metrics by name."""
    return [_declared[name] for name in sorted(_declared)]


RETRIES = counter("frazil_retries_total", "Retries, by operation", "operation")
BREAKER_STATE = gauge("frazil_breaker_state", "Circuit breaker: 0 closed, 1 half-open, 2 open", "name")
BREAKER_OPENED = counter("frazil_breaker_opened_total", "Times that a circuit breaker has opened", "name")
