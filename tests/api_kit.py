"""Requests to an app in this process, as uvicorn would hand them over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlencode

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes
    is_complete: bool = True

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def etag(self) -> str:
        return self.headers["etag"]


class AppClient:
    """Sends requests one at a time from tests, or any number at once from a coroutine."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._runner = asyncio.Runner()
        self.last: Reply
        """The latest answer, also of a request that raises."""

    def run(self, work: Any) -> Any:
        return self._runner.run(work)

    def close(self) -> None:
        self._runner.close()
        self.app.state.service.close()

    def get(self, path: str, **query: Any) -> Any:
        reply = self.ask("GET", path, query)
        assert reply.status == 200, reply.body
        return reply.json

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | str | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        reply: Reply = self.run(self.send(method, path, query, body, headers))
        return reply

    async def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | str | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """A body that is no bytes is sent as JSON."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = {**({} if body is None else JSON), **(headers or {})}
        raw = [(b"host", b"127.0.0.1"), (b"content-length", str(len(content)).encode())]
        text = query if isinstance(query, str) else urlencode(query or {}, doseq=True)
        raw_path = path if "%" in path else quote(path, safe="/:@+=")
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": method, "scheme": "http", "path": unquote(raw_path), "raw_path": raw_path.encode(),
            "query_string": text.encode(), "root_path": "", "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 50000), "state": {},
            "headers": raw + [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
        }  # fmt: skip
        received: list[dict[str, Any]] = [{"type": "http.request", "body": content, "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if received:
                return received.pop()
            await asyncio.sleep(3600)
            return {"type": "http.disconnect"}

        async def note(message: dict[str, Any]) -> None:
            sent.append(message)

        try:
            await self.app(scope, receive, note)
        finally:
            if sent:
                found = {name.decode().lower(): value.decode("latin-1") for name, value in sent[0]["headers"]}
                is_complete = not sent[-1].get("more_body", False) and len(sent) > 1
                self.last = Reply(sent[0]["status"], found, b"".join(m.get("body", b"") for m in sent[1:]), is_complete)
        return self.last
