"""Keeps secrets out of everything that is printed."""

from __future__ import annotations

import re
from typing import Any

from pydantic import SecretStr

from frazil.errors import MASK, mask_urls
from frazil.settings import keys

__all__ = ["MASK", "is_secret", "mask_urls", "masked"]

#: Names of keys, which are no keys.
_PUBLIC_ENDS = ("keyid", "publickey")
#: A key of `spark.conf` or `catalog.properties` that holds one of these, without its dots and dashes, names a secret.
_SECRET_WORDS = (
    "secret",
    "token",
    "passw",
    "passphrase",
    "pwd",
    "credential",
    "accesskey",
    "accountkey",
    "apikey",
    "privatekey",
    "encryptionkey",
    "connectionstring",
    "authorization",
    "cookie",
    "sas",
)


def masked(path: keys.Path, value: Any) -> str:
    """Masks secrets in a value, also passwords inside URLs."""
    if isinstance(value, SecretStr) or is_secret(path):
        return MASK
    return mask_urls(str(value))


def is_secret(path: keys.Path) -> bool:
    field = keys.field_at(path)
    if field is not None:
        return "SecretStr" in str(field.annotation)
    key = re.sub(r"[^a-z0-9]", "", path[-1].lower())
    if key.endswith(_PUBLIC_ENDS):
        return False
    header = key.startswith("header") and "auth" in key
    return header or key.endswith("key") or any(word in key for word in _SECRET_WORDS)
