"""Envelopes of events: SNS, SQS, lists, and JSON as a string inside JSON."""

from __future__ import annotations

from typing import Any, Final

from frazil.content.events.fields import load
from frazil.content.events.model import Unreadable

#: SNS in SQS in Lambda is eight levels deep; no store nests many more.
_MAX_STEPS: Final = 16


def unwrap(document: Any) -> list[dict[str, Any] | Unreadable]:
    """Yields the events of a message in order; what cannot be unwrapped takes its place."""
    if type(document) is dict:
        records = document.get("Records")
        if type(records) is list and all(type(record) is dict and "s3" in record for record in records):
            return records
    return _unwrap(document, _MAX_STEPS)


def _unwrap(document: Any, steps: int) -> list[dict[str, Any] | Unreadable]:
    if steps == 0:
        return [Unreadable("too_deep", "an event is nested in too many envelopes")]
    if type(document) is list:
        return [event for item in document for event in _unwrap(item, steps - 1)]
    if type(document) is str:
        try:
            return _unwrap(load(document), steps - 1)
        except Unreadable as error:
            return [error]
    if type(document) is not dict:
        return [Unreadable("not_an_event", f"an event must be a JSON object, not {document!r:.50}")]
    return _unwrap_object(document, steps)


def _unwrap_object(document: dict[str, Any], steps: int) -> list[dict[str, Any] | Unreadable]:
    for name in ("Records", "Messages"):  # of S3, Lambda, MinIO; of SQS's ReceiveMessage
        if type(document.get(name)) is list:
            return _unwrap(document[name], steps - 1)
    kind = document.get("Type")
    if kind in ("SubscriptionConfirmation", "UnsubscribeConfirmation"):
        return [Unreadable("sns_confirmation", "SNS waits for a confirmation: its SubscribeURL has to be opened")]
    if kind == "Notification" and type(document.get("Message")) is str:
        return _unwrap(document["Message"], steps - 1)
    for name in ("body", "Body"):  # of SQS, as Lambda and as ReceiveMessage write it
        if type(document.get(name)) is str:
            return _unwrap(document[name], steps - 1)
    sns = document.get("Sns")
    if type(sns) is dict and type(sns.get("Message")) is str:
        return _unwrap(sns["Message"], steps - 1)
    if document.get("Event") == "s3:TestEvent":
        return []
    return [document]
