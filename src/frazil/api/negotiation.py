"""Which of two forms a client prefers, by its `Accept` header."""

from __future__ import annotations

from fastapi import Request


def prefers(request: Request, form: str, default: str) -> bool:
    """Whether a client names a form, and does not like the default one better. Ranges such as `*/*` name nothing."""
    accepted = _accepted(request)
    return accepted.get(form, 0.0) > 0 and accepted[form] >= accepted.get(default, 0.0)


def _accepted(request: Request) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in ",".join(request.headers.getlist("accept")).split(","):
        kind, *parameters = (text.strip().lower() for text in part.split(";"))
        weights = [text[2:] for text in parameters if text.startswith("q=")]
        try:
            found[kind] = float(weights[0]) if weights else 1.0
        except ValueError:
            found[kind] = 0.0
    return found
