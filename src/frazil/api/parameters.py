"""Query parameters below `/api/v1`: an unknown or repeated one is refused, not ignored."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_origin

from fastapi import Request

from frazil.errors import UsageError


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuses query parameters that the route does not have. A coroutine: FastAPI would hand a function to a thread.

    Raises:
        UsageError: one is unknown, or is there twice and is no list; says which.
    """
    if not request.url.query:
        return
    known = {field.alias: field.field_info.annotation for field in request.scope["route"].dependant.query_params}
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        shown = f"'{name[:80]}'"
        if name not in known:
            hint = f"one of: {', '.join(known)}" if known else "this path has none"
            raise UsageError(f"the query parameter {shown} does not exist", hint=hint)
        if times > 1 and not _is_list(known[name]):
            raise UsageError(f"the query parameter {shown} is given {times:,} times", hint="give it once")


def _is_list(annotation: Any) -> bool:
    return any(get_origin(kind) is list for kind in (annotation, *getattr(annotation, "__args__", ())))
