"""A REST catalog that asks who you are: the auth gateway in front of the reference server."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.handle import Handle
from tests.services.process import free_port, port_answers, start
from tests.services.rest import Rest


@dataclass(frozen=True, kw_only=True)
class SecuredRest(Handle):
    """Takes `token`, or a token issued by `oauth2_uri` for `client_id` and `client_secret`."""

    upstream: Rest
    oauth2_uri: str
    token: str = "frazil-static-token"
    client_id: str = "frazil-client"
    client_secret: str = "frazil-client-secret"
    scope: str = "catalog"

    @property
    def credential(self) -> str:
        return f"{self.client_id}:{self.client_secret}"

    @property
    def credentials(self) -> str:
        return f"token {self.token}, or client {self.credential}"

    def settings(self) -> dict[str, Any]:
        """By client credentials."""
        found = self.upstream.settings()
        login = {"credential": self.credential, "oauth2_uri": self.oauth2_uri, "scope": self.scope}
        return {**found, "catalog": {"kind": "rest", "uri": self.url, **login}}

    def token_settings(self) -> dict[str, Any]:
        """By the fixed token."""
        return {**self.upstream.settings(), "catalog": {"kind": "rest", "uri": self.url, "token": self.token}}


def start_secured_rest(folder: Path, *, upstream: Rest, token_uses: int = 1_000_000) -> SecuredRest:
    """Starts the gateway; an issued token ends after `token_uses` requests, which makes clients renew it."""
    port = free_port()
    rules = {
        "client_id": SecuredRest.client_id,
        "client_secret": SecuredRest.client_secret,
        "scope": SecuredRest.scope,
        "static_token": SecuredRest.token,
        "token_uses": token_uses,
    }
    given = {"host": "127.0.0.1", "port": port, "upstream_host": "127.0.0.1", "upstream_port": upstream.process.port}
    process = start(
        "secured_rest",
        [sys.executable, Path(__file__).with_name("auth_gateway.py")],
        folder=folder,
        port=port,
        env={"AUTH_GATEWAY": json.dumps({**given, "rules": rules})},
    )
    process.wait_ready(lambda: port_answers(port))
    url = f"http://127.0.0.1:{port}"
    return SecuredRest(url=url, process=process, upstream=upstream, oauth2_uri=f"{url}/oauth/tokens")
