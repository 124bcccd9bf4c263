"""Metrics of the log."""

from contextlib import suppress

from frazil.observe.metrics import counter, gauge

MESSAGES = counter("frazil_log_messages_total", "Messages appended to the log", "topic")
BYTES = counter("frazil_log_bytes_total", "Bytes appended to the log, with headers", "topic")
BATCHES = counter("frazil_log_batches_total", "Batches appended to the log", "topic")
DUPLICATES = counter("frazil_log_duplicates_total", "Retried batches that were already in the log", "topic")
REFUSED = counter("frazil_log_refused_total", "Batches rejected, by kind of error", "topic", "error")
SYNCS = counter("frazil_log_syncs_total", "Calls of fdatasync", "topic")
SYNC_SECONDS = counter("frazil_log_sync_seconds_total", "Seconds spent in fdatasync", "topic")
WAITED = counter("frazil_log_waits_total", "Times a publisher had to wait because the buffer was full", "topic")
SIZE = gauge("frazil_log_size_bytes", "Bytes of a topic's segments", "topic")
END = gauge("frazil_log_end_offset", "Visible end of a topic: the next offset on disk", "topic")
START = gauge("frazil_log_start_offset", "First offset that a topic's log still has", "topic")
REMOVED = counter("frazil_log_retention_bytes_total", "Bytes that retention has removed", "topic")
QUARANTINED = counter("frazil_log_quarantined_bytes_total", "Torn bytes that recovery has cut off and kept")
CALLS = counter("frazil_broker_calls_total", "Flight calls by outcome: ok, refused, failed", "call", "outcome")
STREAMS = gauge("frazil_broker_streams", "Streams of producers that are open now")
WAITING = gauge("frazil_broker_waiting_readers", "Readers that wait for new messages now")
FAILED = gauge("frazil_log_failed", "1 while a topic is shut because a sync has failed", "topic")


def forget(topic: str) -> None:
    """Removes the gauges of a deleted topic: their last values would raise alarms forever."""
    for one in (SIZE, END, START, FAILED):
        with suppress(KeyError):
            one.remove(topic)
