"""Amounts as people type them: `7d`, `10GB`."""

from __future__ import annotations

import re

from frazil.errors import UsageError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {"": 1, "b": 1, **{f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)}}
_BYTES |= {f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)}


def seconds(text: str) -> float:
    """`90s`, `30m`, `12h`, `7d`, `2w`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip().lower())
    if found is None:
        raise UsageError(f"{text!r} is not a duration", hint="a number followed by s, m, h, d or w: 90s, 12h, 7d")
    return float(found[1]) * _SECONDS[found[2]]


def size(text: str) -> int:
    """`500000`, `10GB`, `64MiB`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _BYTES:
        raise UsageError(
            f"{text!r} is not a size",
            hint="a number of bytes, or a number followed by KB, MB, GB, TB, KiB, MiB, GiB or TiB",
        )
    return int(float(found[1]) * _BYTES[found[2]])


def shown_size(number: int) -> str:
    """For people, with three digits that count."""
    value, unit = float(number), "B"
    for following in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, following
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
