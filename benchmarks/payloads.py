"""Messages as they come in life: JSON events of an object store, that compress, but not to nothing."""

from __future__ import annotations

import functools
import json
import random

_TEXT = """
invoice report scan contract summary photo receipt backup export order shipment customer archive draft final quarter
region north south audit legal finance media raw clean daily weekly import sensor reading image page
"""
_WORDS = _TEXT.split()
_KINDS = ("ObjectCreated:Put", "ObjectCreated:Copy", "ObjectCreated:CompleteMultipartUpload", "ObjectRemoved:Delete")
_TYPES = ("application/pdf", "image/jpeg", "text/csv", "application/json", "application/octet-stream")
POOL = 20_000  # larger than any window of the compressor: a repeated message is not found again


@functools.cache
def messages(size: int, number: int = POOL) -> tuple[bytes, ...]:
    """Different messages of exactly `size` bytes, the same in every run."""
    source = random.Random(size)
    return tuple(_message(source, size) for _ in range(number))


def _message(source: random.Random, size: int) -> bytes:
    event: dict[str, object] = {
        "eventTime": f"2026-11-{source.randint(1, 28):02}T{source.randint(0, 23):02}:{source.randint(0, 59):02}:"
        f"{source.randint(0, 59):02}.{source.randint(0, 999):03}Z",
        "eventName": source.choice(_KINDS),
        "key": f"{'/'.join(source.choices(_WORDS, k=3))}/{source.randint(0, 10**7):07}.bin",
        "size": int(source.lognormvariate(11, 2)),
        "eTag": f"{source.getrandbits(128):032x}",
    }
    if size > 512:
        event |= {
            "bucket": f"{source.choice(_WORDS)}-{source.randint(1, 40)}",
            "sequencer": f"{source.getrandbits(64):016X}",
            "sourceIPAddress": f"10.{source.randint(0, 255)}.{source.randint(0, 255)}.{source.randint(0, 255)}",
            "contentType": source.choice(_TYPES),
            "userAgent": "aws-sdk-java/2.29.9 Linux/6.1 OpenJDK_64-Bit_Server_VM/17.0.13",
            "tags": {source.choice(_WORDS): source.choice(_WORDS) for _ in range(4)},
        }
    text = json.dumps(event)
    missing = size - len(text) - len(', "note": ""')
    if missing < 0:
        raise ValueError(f"a message of {size} bytes has no room for the event")
    note = ""
    while len(note) < missing:
        note += f"{source.choice(_WORDS)} {source.randint(0, 99_999)} "
    return f'{text[:-1]}, "note": "{note[:missing]}"}}'.encode()
