"""Amounts as people read them, for the reasons that a plan gives."""

from __future__ import annotations


def format_size(number: float) -> str:
    """`412 B`, `1.4 MiB`."""
    value, unit = float(number), "B"
    for following in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, following
    return f"{value:,.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.1f} {unit}"


def format_age(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h`, `5 days`."""
    for limit, length, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
