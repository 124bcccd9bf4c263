"""Cursors of pages: the place after which the next page begins, signed so that nobody else can make one."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as sign
from typing import Any

import orjson

from frazil.errors import UsageError

_SIGNATURE_BYTES = 16
_MAX_CURSOR = 8192


def encode_cursor(key: bytes, listing: Mapping[str, Any], place: list[Any]) -> str:
    """Returns a cursor.

    Args:
        key: the secret of the store.
        listing: filter, order and moment of the listing. The cursor is refused for any other one.
        place: sort values of the last row of the page.
    """
    payload = orjson.dumps(place)
    return urlsafe_b64encode(_signature(key, listing, payload) + payload).rstrip(b"=").decode()


def decode_cursor(key: bytes, listing: Mapping[str, Any], cursor: str) -> list[Any]:
    """Returns the place of a cursor.

    Raises:
        UsageError: this store did not make it, or made it for another listing.
    """
    if isinstance(cursor, str) and len(cursor) <= _MAX_CURSOR:
        try:
            raw = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            raw = b""
        signature, payload = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        if compare_digest(signature, _signature(key, listing, payload)):
            place: list[Any] = orjson.loads(payload)
            return place
    raise UsageError(
        "the cursor is invalid",
        cause="it is damaged, or belongs to another store, filter, order or moment",
        hint="repeat the listing without a cursor, and give its cursors back unchanged with the same filters",
    )


def _signature(key: bytes, listing: Mapping[str, Any], payload: bytes) -> bytes:
    scope = sha256(orjson.dumps(listing, option=orjson.OPT_SORT_KEYS)).digest()
    return sign(key, scope + payload, "sha256")[:_SIGNATURE_BYTES]
