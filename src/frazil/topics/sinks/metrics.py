"""What the pipeline tells of each topic and sink."""

from __future__ import annotations

from contextlib import suppress

from frazil.observe.metrics import counter, gauge

_WHOSE = ("topic", "sink")

LAG_OFFSETS = gauge("frazil_sink_lag_offsets", "Messages in the log that the sink's table does not have yet", *_WHOSE)
LAG_BYTES = gauge("frazil_sink_lag_bytes", "Bytes of those messages, up to one batch", *_WHOSE)
LAG_SECONDS = gauge("frazil_sink_lag_seconds", "How long the oldest of those messages has been waiting", *_WHOSE)
OFFSET = gauge("frazil_sink_offset", "First offset that the sink's table does not have", *_WHOSE)
COMMITS = counter("frazil_sink_commits_total", "Batches that a sink has committed", *_WHOSE)
CONFLICTS = counter("frazil_sink_conflicts_total", "Batches that another pipeline committed first", *_WHOSE)
FAILURES = counter("frazil_sink_failures_total", "Batches that failed and were retried", *_WHOSE)
ROWS = counter("frazil_sink_rows_total", "Rows that a sink has committed", *_WHOSE)
BYTES = counter("frazil_sink_bytes_total", "Bytes of the log that a sink has committed", *_WHOSE)
DEAD = counter("frazil_sink_dead_letters_total", "Messages that a sink has written to the dead letters", *_WHOSE)
SECONDS = counter("frazil_sink_batch_seconds_total", "Seconds from a batch's plan to its commit", *_WHOSE)
STOPPED = gauge("frazil_sink_stopped", "1 while a sink waits for an operator", *_WHOSE)
EXPIRED = counter("frazil_sink_expired_rows_total", "Rows that retention has removed from the table", *_WHOSE)


def forget(topic: str, sink: str) -> None:
    """Takes the gauges of a topic away that is gone: their last values would be told for ever, and alarm somebody."""
    for one in (LAG_OFFSETS, LAG_BYTES, LAG_SECONDS, OFFSET, STOPPED):
        with suppress(KeyError):
            one.remove(topic, sink)
