"""What every server of the kit gives to its users."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.process import ServerProcess


@dataclass(frozen=True, kw_only=True)
class Handle:
    url: str
    process: ServerProcess

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def log(self) -> Path:
        return self.process.log

    @property
    def credentials(self) -> str:
        """For a person to read."""
        return "none needed"

    def settings(self) -> dict[str, Any]:
        """The part of a frazil.yaml that points at this server."""
        return {}

    def stop(self) -> None:
        self.process.stop()
