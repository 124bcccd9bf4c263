"""Metrics of the intake."""

from frazil.observe.metrics import counter

MESSAGES = counter(
    "frazil_content_intake_messages_total", "Event messages made durable, by source: webhook, sqs, file", "source"
)
BYTES = counter("frazil_content_intake_bytes_total", "Bytes of event messages made durable, by source", "source")
REFUSED = counter(
    "frazil_content_intake_refused_total",
    "Rejected event messages, by source and kind of error; their sender was informed, or still has them",
    "source",
    "error",
)
SQS_DELETED = counter("frazil_content_sqs_deleted_total", "Messages deleted from a queue after they were durable")
SQS_UNDELETED = counter(
    "frazil_content_sqs_undeleted_total",
    "Durable messages that could not be deleted from a queue; they are delivered again",
)
