"""Settings that a program passes as a mapping, in the form of `--set`: dotted keys and text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from frazil.settings import keys


def flatten_settings(settings: Mapping[str, Any], where: str) -> dict[str, str]:
    """Returns the values by dotted key. Sections may be nested or dotted; None leaves a setting to other sources.

    Args:
        settings: for example `{"catalog.uri": "…", "log": {"max_message_size": 1024}}`.
        where: how errors name the place where they were given.

    Raises:
        ConfigError: there is no such setting.
    """
    return dict(_flatten("", settings, where))


def _flatten(prefix: str, settings: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        # Names of sections inside a section, such as patterns of tables, may have dots of their own.
        key = f'{prefix}."{name}"' if prefix and "." in name else f"{prefix}.{name}" if prefix else name
        if isinstance(value, Mapping):
            if keys.shape_at(keys.resolve(key, where=where)) == "map":
                yield key, json.dumps(value, default=_to_text)
            else:
                yield from _flatten(key, value, where)
        elif value is not None:
            yield key, _to_text(value)


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_to_text, value))
    return str(value)
