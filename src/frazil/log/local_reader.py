"""Reads frames out of the log's own files, where they lie on this machine: the broker only says where.

A folder of the same name on another machine must not be taken for the log's. So the lock file in it has to be held by
a living process, and to name the same one that has answered: each owner of a log writes a word there that nobody else
has.
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
    """Whole frames in a segment's file, all of them on disk."""

    segment_id: int
    begin: int
    end: int
    next_offset: int
    """The first offset behind them."""


@dataclass(frozen=True)
class LocalFrames:
    """Where the frames of a range lie, in order.

    Attributes:
        directory: the log's folder, as its process sees it.
        folder: the topic's folder in it.
        owner: the word of the process that has the log.
        log_id: stands in each frame.
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
    """The frames as chunks, each with the first offset behind it.

    It ends early, and without an error, where the files are not here, are not those of this log, or are gone: the
    broker has the rest, or says why there is none.
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
    """The file may be another one of the same name by now. The CRCs of all frames are checked when they are decoded."""
    if data.size < place.end - place.begin:
        raise BadFrameError("the segment is shorter than the broker said")
    header = unpack_header(data)
    if header.log_id != log_id or header.base_offset < place.segment_id:
        raise BadFrameError("the segment is one of another log")
