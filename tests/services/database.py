"""What the handles of both databases have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.services.handle import Handle


@dataclass(frozen=True, kw_only=True)
class Database(Handle):
    """`url` carries user, password and database, the way SQLAlchemy reads it."""

    port: int
    user: str = "frazil"
    password: str = "frazil-secret"
    database: str = "frazil"
    host: str = "127.0.0.1"

    @property
    def credentials(self) -> str:
        return f"{self.user} / {self.password}"

    def settings(self) -> dict[str, Any]:
        return {"database": {"url": self.url}}


def database_url(scheme: str, port: int) -> str:
    return f"{scheme}://{Database.user}:{Database.password}@{Database.host}:{port}/{Database.database}"
