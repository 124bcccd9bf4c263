"""Reads frames from the log's own files if they are on this machine: the broker only sends their positions.

A folder of the same name on another machine must not be mistaken for the log's. So its lock file has to be held by a
living process, and to contain the word of the owner that has answered, which is unique.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from frazil.log.frame import BadFrameError, unpack_header
from frazil.log.memory import read_at
from frazil.log.owner import read_owner
from frazil.log.protocol import Chunk
from frazil.log.segment import segment_path


@dataclass(frozen=True)
class FrameRange:
    """Whole frames in a segment file, all of them synced."""

    segment_id: int
    begin: int
    end: int
    next_offset: int
    """The first offset after them."""


@dataclass(frozen=True)
class LocalFrames:
    """The positions of the frames of a range, in order.

    Attributes:
        directory: the log's folder, as its process sees it.
        folder: the topic's folder in it.
        owner: the word of the process that owns the log.
        log_id: the number in each frame.
        producers: names of producers that may occur.
    """

    directory: str
    folder: str
    owner: str
    log_id: int
    producers: dict[int, str]
    places: list[FrameRange]

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Self:
        names = {int(i): name for i, name in given["producers"].items()}
        return cls(**{**given, "producers": names, "places": [FrameRange(**p) for p in given["places"]]})


def read_local_frames(found: LocalFrames) -> Iterator[tuple[Chunk, int]]:
    """Yields the frames as chunks, each with the first offset after it.

    Ends early and without an error if the files are not on this machine, belong to another log, or are gone: the broker
    serves the rest, or reports why it cannot.
    """
    with suppress(OSError, BadFrameError):
        owner = read_owner(Path(found.directory))
        if owner is None or owner.word != found.owner:
            return
        for segment_id, places in groupby(found.places, key=lambda place: place.segment_id):
            with segment_path(Path(found.folder), segment_id).open("rb", buffering=0) as file:
                for place in places:
                    data = read_at(file.fileno(), place.begin, place.end - place.begin)
                    _check(data, place, found.log_id)
                    yield Chunk(segment_id, data, found.producers), place.next_offset


def _check(data: pa.Buffer, place: FrameRange, log_id: int) -> None:
    """Checks that the file is still the same one. The CRCs of all frames are checked when they are decoded."""
    if data.size < place.end - place.begin:
        raise BadFrameError("the segment is shorter than the broker said")
    header = unpack_header(data)
    if header.log_id != log_id or header.base_offset < place.segment_id:
        raise BadFrameError("the segment is one of another log")
