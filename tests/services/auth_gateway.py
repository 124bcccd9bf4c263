"""A gateway that lets only bearers of a token through to a REST catalog, and issues tokens for client credentials.

It knows OAuth2's client credentials (in the form or as HTTP Basic) and the token exchange with which Iceberg's Java
client renews a token. Run as a program; `secured_rest.py` does.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_TOKEN_PATHS = ("/oauth/tokens", "/v1/oauth/tokens")  # the second is where Iceberg clients look when told nothing
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_NOT_FORWARDED = {"authorization", "connection", "host", "keep-alive", "transfer-encoding", "upgrade"}


@dataclass(frozen=True)
class Rules:
    """Whom the gateway lets through."""

    client_id: str
    client_secret: str
    scope: str
    static_token: str
    token_uses: int
    _issued: dict[str, int] = field(default_factory=dict)

    def accepts(self, token: str) -> bool:
        """Each issued token opens so many times and no more: by count and not by clock, for slow machines too."""
        if token == self.static_token:
            return True
        left = self._issued.get(token, 0)
        self._issued[token] = left - 1
        return left > 0

    def issue(self) -> dict[str, Any]:
        token = secrets.token_urlsafe(24)
        self._issued[token] = self.token_uses
        return {
            "access_token": token,
            "token_type": "bearer",
            "expires_in": 3600,
            "scope": self.scope,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }

    def refusal(self, form: dict[str, str], basic: str | None) -> tuple[str, str] | None:
        """Why this token request is refused, as OAuth2's error and description; None when it is not."""
        client = (form.get("client_id", ""), form.get("client_secret", ""))
        if basic:
            name, _, secret = base64.b64decode(basic).decode().partition(":")
            client = (name, secret)
        renews = form.get("grant_type") == _EXCHANGE and self.accepts(form.get("subject_token", ""))
        if form.get("grant_type") not in ("client_credentials", _EXCHANGE):
            return "unsupported_grant_type", "only client_credentials and token exchange are known here"
        if client != (self.client_id, self.client_secret) and not renews:
            return "invalid_client", "the client id or its secret is wrong"
        if form.get("scope", self.scope) != self.scope:
            return "invalid_scope", f"the only scope here is {self.scope}"
        return None


class GatewayHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    rules: Rules
    upstream: tuple[str, int]

    def do_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        scheme, _, value = self.headers.get("Authorization", "").partition(" ")
        if self.command == "POST" and urllib.parse.urlsplit(self.path).path in _TOKEN_PATHS:
            self._issue_token(body, value if scheme.lower() == "basic" else None)
        elif scheme.lower() == "bearer" and self.rules.accepts(value):
            self._forward(body)
        else:
            message = "the bearer token is wrong or has expired" if value else "a bearer token is needed"
            self._answer(401, {"error": {"message": message, "type": "NotAuthorizedException", "code": 401}})

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_any  # noqa: N815 - the base class looks for these names

    def _issue_token(self, body: bytes, basic: str | None) -> None:
        form = dict(urllib.parse.parse_qsl(body.decode()))
        refusal = self.rules.refusal(form, basic)
        if refusal is None:
            self._answer(200, self.rules.issue())
        else:
            status = 401 if refusal[0] == "invalid_client" else 400
            self._answer(status, {"error": refusal[0], "error_description": refusal[1]})

    def _forward(self, body: bytes) -> None:
        headers = {key: value for key, value in self.headers.items() if key.lower() not in _NOT_FORWARDED}
        connection = http.client.HTTPConnection(*self.upstream, timeout=60)
        try:
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            self._send(answer.status, answer.read(), answer.headers.get("Content-Type", "application/json"))
        except OSError as error:
            self._answer(502, {"error": {"message": str(error), "type": "BadGateway", "code": 502}})
        finally:
            connection.close()

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def main() -> None:
    """Serves until it is ended. The secrets come through the environment, where `ps` does not show them."""
    given = json.loads(os.environ["AUTH_GATEWAY"])
    GatewayHandler.rules = Rules(**given["rules"])
    GatewayHandler.upstream = (given["upstream_host"], given["upstream_port"])
    server = ThreadingHTTPServer((given["host"], given["port"]), GatewayHandler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
