"""The names of the tables and the sink of this room."""

from __future__ import annotations

from frazil.settings import Settings

#: The sink that writes both tables.
DOCUMENTS = "documents"


def metadata_name(settings: Settings) -> str:
    """The table with the present documents; it carries the position of the sink."""
    return f"{settings.model.documents.namespace}.document_metadata"


def history_name(settings: Settings) -> str:
    """The table with every revision of every document, committed before the other."""
    return f"{settings.model.documents.namespace}.document_history"
