"""Keeps web pages out. A server on loopback without tokens is open to every program here, but not to other sites."""

from __future__ import annotations

import ipaddress

from fastapi import Request

from frazil.api.service import service_of
from frazil.errors import NotAllowedError


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


async def refuse_other_sites(request: Request) -> None:
    """Refuses what a browser sends for a page of another site. A coroutine: FastAPI would hand a function to a thread.

    Raises:
        NotAllowedError: the browser says so, or the page reaches us under a name of its own (DNS rebinding).
    """
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise NotAllowedError("a page of another site may not use this API")
    if is_loopback(service_of(request).settings.serve.host) and not is_loopback(request.url.hostname or ""):
        raise NotAllowedError(
            f"this server does not go by the name {request.url.hostname}", hint="http://127.0.0.1, or http://localhost"
        )
