"""Names of topics, sinks and subscriptions. A topic's name is also a folder, a table and a part of URLs."""

from __future__ import annotations

import re

from frazil.errors import UsageError

_TOPIC = re.compile(r"[a-z][a-z0-9_]{0,99}")
_OTHER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")
RESERVED = frozenset({"dead_letters"})


def check_topic_name(name: str) -> str:
    if not _TOPIC.fullmatch(name):
        near = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")[:100]
        raise UsageError(
            f"{name!r} is no topic's name",
            cause="it has lower-case letters, digits and '_', begins with a letter, and has at most 100 characters",
            hint=near if _TOPIC.fullmatch(near) and near not in RESERVED else "a name such as orders_eu",
        )
    if name in RESERVED:
        raise UsageError(f"the name '{name}' is Frazil's own", hint="another name")
    return name


def check_name(name: str, what: str) -> str:
    """Validates the name of a producer, a sink or a subscription."""
    if not _OTHER.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a {what}",
            cause="it has letters, digits and . _ : -, begins with a letter or digit, and has at most 200 characters",
            hint="a name such as billing-1",
        )
    return name
