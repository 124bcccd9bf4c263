"""Metrics of extraction, counted by the process that started the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.observe.metrics import counter

if TYPE_CHECKING:
    from frazil.content.extraction.task import ExtractionReport

OBJECTS = counter("frazil_extract_objects_total", "Objects extracted, by status: ok, failed, gone, changed", "status")
RESULTS = counter(
    "frazil_extract_results_total", "Results of extractors, by extractor and status", "extractor", "status"
)
SECONDS = counter("frazil_extract_seconds_total", "Seconds that extractors took, by extractor", "extractor")
BYTES = counter("frazil_extract_read_bytes_total", "Bytes of objects that were read")
RESTARTS = counter(
    "frazil_extract_restarts_total",
    "Extractor processes that were replaced because they hung, crashed or ran out of memory",
)
THUMBNAILS = counter("frazil_extract_thumbnails_total", "Thumbnails, by result: written, failed", "result")


def add(report: ExtractionReport) -> None:
    """Adds the report of a job."""
    for status, objects in report.by_status.items():
        OBJECTS.labels(status).inc(objects)
    for (name, status), results in report.by_extractor.items():
        RESULTS.labels(name, status).inc(results)
    for name, seconds in report.seconds.items():
        SECONDS.labels(name).inc(seconds)
    BYTES.inc(report.bytes_read)
    RESTARTS.inc(report.restarts)
    THUMBNAILS.labels("written").inc(report.thumbnails)
    THUMBNAILS.labels("failed").inc(report.thumbnails_failed)
