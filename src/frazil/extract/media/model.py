"""The metadata of a media container."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

#: Bytes of one read. Containers are read header by header; one request for each would be slow.
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
    """The metadata of a container. `tags` has the field names of results: title, author, album and so on."""

    container: str
    duration: float | None = None
    streams: list[Stream] = field(default_factory=list)
    tags: dict[str, Any] = field(default_factory=dict)
    cover: bool = False
    taken_at: str | None = None
    place: tuple[float, float, float | None] | None = None

    def tag(self, name: str | None, value: Any) -> None:
        """Adds a tag; the first value of a name counts."""
        if name and value and name not in self.tags:
            self.tags[name] = value

    def first(self, kind: str) -> Stream | None:
        """Returns the first track of a kind."""
        return next((s for s in self.streams if s.kind == kind), None)
