"""Names of the content tables and their sink."""

from __future__ import annotations

from frazil.settings import Settings

#: The sink that writes both tables.
CONTENT = "content"


def journal_name(settings: Settings) -> str:
    return f"{settings.model.content.namespace}.journal"


def objects_name(settings: Settings) -> str:
    return f"{settings.model.content.namespace}.objects"
