"""One message with headers, as a batch."""

from __future__ import annotations

import pyarrow as pa

from frazil.log.batch import Batch
from frazil.log.columns import HEADERS


def with_headers(payload: bytes, request_id: int | None, headers: dict[str, str]) -> Batch:
    return batch_with_headers([payload], [request_id], [headers])


def batch_with_headers(
    payloads: list[bytes], request_ids: list[int | None], headers: list[dict[str, str] | None], **producer: int
) -> Batch:
    columns = {
        "payload": pa.array(payloads, pa.binary()),
        "request_id": pa.array(request_ids, pa.int64()),
        "headers": pa.array([None if h is None else list(h.items()) for h in headers], HEADERS),
    }
    return Batch.of_arrow(pa.record_batch(columns), **producer)
