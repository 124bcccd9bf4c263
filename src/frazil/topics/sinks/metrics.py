"""Metrics of each topic and sink."""

from __future__ import annotations

from contextlib import suppress

from frazil.observe.metrics import counter, gauge

_LABELS = ("topic", "sink")

LAG_OFFSETS = gauge("frazil_sink_lag_offsets", "Messages in the log that the sink's table does not have yet", *_LABELS)
LAG_BYTES = gauge("frazil_sink_lag_bytes", "Bytes of those messages, up to one batch", *_LABELS)
LAG_SECONDS = gauge("frazil_sink_lag_seconds", "How long the oldest of those messages has been waiting", *_LABELS)
OFFSET = gauge("frazil_sink_offset", "First offset that the sink's table does not have", *_LABELS)
COMMITS = counter("frazil_sink_commits_total", "Batches that a sink has committed", *_LABELS)
CONFLICTS = counter("frazil_sink_conflicts_total", "Batches that another pipeline committed first", *_LABELS)
FAILURES = counter("frazil_sink_failures_total", "Batches that failed and were retried", *_LABELS)
ROWS = counter("frazil_sink_rows_total", "Rows that a sink has committed", *_LABELS)
BYTES = counter("frazil_sink_bytes_total", "Bytes of the log that a sink has committed", *_LABELS)
DEAD = counter("frazil_sink_dead_letters_total", "Messages that a sink has written to the dead letters", *_LABELS)
SECONDS = counter("frazil_sink_batch_seconds_total", "Seconds from a batch's plan to its commit", *_LABELS)
STOPPED = gauge("frazil_sink_stopped", "1 while a sink waits for an operator", *_LABELS)
EXPIRED = counter("frazil_sink_expired_rows_total", "Rows that retention has removed from the table", *_LABELS)


def forget(topic: str, sink: str) -> None:
    """Removes the gauges of a topic and sink that are gone: their last values would raise alarms forever."""
    for one in (LAG_OFFSETS, LAG_BYTES, LAG_SECONDS, OFFSET, STOPPED):
        with suppress(KeyError):
            one.remove(topic, sink)
