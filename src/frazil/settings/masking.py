"""Keeps secrets out of everything that is printed."""

from __future__ import annotations

import re
from typing import Any

from pydantic import SecretStr

from frazil.settings import keys

MASK = "********"
_SECRET_WORDS = ("secret", "token", "password", "passwd", "credential", "access-key", "account-key", "sas")
_PASSWORD_IN_URL = re.compile(r"(?P<before>[a-z0-9+.-]+://[^:/@\s]*:)(?P<password>[^@/\s]+)(?=@)", re.IGNORECASE)


def masked(path: keys.Path, value: Any) -> str:
    """A value as it may be shown: secrets as stars, passwords inside URLs too."""
    if isinstance(value, SecretStr) or is_secret(path):
        return MASK
    return mask_urls(str(value))


def is_secret(path: keys.Path) -> bool:
    field = keys.field_at(path)
    if field is not None and "SecretStr" in str(field.annotation):
        return True
    in_map = field is None
    return in_map and any(word in path[-1].lower() for word in _SECRET_WORDS)


def mask_urls(text: str) -> str:
    return _PASSWORD_IN_URL.sub(lambda m: m["before"] + MASK, text)
