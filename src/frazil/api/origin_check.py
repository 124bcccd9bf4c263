"""Keeps web pages out: a server on loopback without tokens is open to every local program, but not to other sites."""

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
    """Refuses requests that a browser sends for a page of another site.

    A coroutine, because FastAPI would run a function in a thread.

    Raises:
        NotAllowedError: the browser says so (`Sec-Fetch-Site`, or `Origin` in older ones), or the page reaches the
            server under its own name (DNS rebinding).
    """
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise NotAllowedError("a page of another site may not use this API")
    origin = request.headers.get("origin")
    if origin is not None and (origin.partition("://")[2] or origin) != request.headers.get("host"):
        raise NotAllowedError(
            "a page of another origin may not use this API",
            cause="the Origin header names another host or port than the Host header",
            hint="a proxy in front of this server has to pass the Host header on",
        )
    host = request.headers.get("host")  # each browser sends it
    if host is not None and is_loopback(service_of(request).settings.serve.host) and not is_loopback(_parse_host(host)):
        raise NotAllowedError(
            f"this server does not go by the name {_parse_host(host)[:100] or '(empty)'}",
            hint="http://127.0.0.1, or http://localhost",
        )


def _parse_host(host: str) -> str:
    """The name in a Host header, without the port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
