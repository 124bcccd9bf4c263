"""What all containers are told as, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

#: Bytes of one read. Containers are read header by header; a request for each would be slow.
BLOCK: Final = 32 * 1024


@dataclass
class Stream:
    """One track: `kind` is audio or video."""

    kind: str
    codec: str | None = None
    width: int | None = None
    height: int | None = None
    rotation: int = 0
    frame_rate: float | None = None
    sample_rate: int | None = None
    channels: int | None = None
    bits: int | None = None
    bit_rate: int | None = None


@dataclass
class Media:
    """What a container says. `tags` has the names that results have: title, author, album and so on."""

    container: str
    duration: float | None = None
    streams: list[Stream] = field(default_factory=list)
    tags: dict[str, Any] = field(default_factory=dict)
    cover: bool = False
    taken_at: str | None = None
    place: tuple[float, float, float | None] | None = None

    def tag(self, name: str | None, value: Any) -> None:
        """Keeps the first value of a name that is known."""
        if name and value and name not in self.tags:
            self.tags[name] = value

    def first(self, kind: str) -> Stream | None:
        """The first track of a kind."""
        return next((s for s in self.streams if s.kind == kind), None)
