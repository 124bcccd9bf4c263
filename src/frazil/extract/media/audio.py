"""The extractor `audio`: duration, codec and tags."""

from __future__ import annotations

import math
import re
from typing import Any

from frazil.extract import Item, extractor, normalize
from frazil.extract.media.model import Media

TYPES = ("audio/*", "application/ogg")


def length(media: Media) -> float | None:
    """Returns the duration in seconds if it is plausible: a year of audio is a damaged header."""
    told = media.duration
    return round(told, 3) if told is not None and math.isfinite(told) and 0 < told < 366 * 86_400 else None


def overall_rate(size: int, seconds: float | None) -> int | None:
    """Returns the bit rate of the whole object."""
    return round(size * 8 / seconds) if seconds else None


def year(told: Any) -> int | None:
    """Returns the year in a date of any form."""
    found = re.search(r"\d{4}", str(told or "")[:64])
    return int(found[0]) if found and int(found[0]) in normalize.YEARS else None


@extractor(
    "audio",
    types=TYPES,
    fields={
        "container": "mp3, wav, flac, ogg, mp4, …",
        "duration": "seconds",
        "codec": "mp3, aac, flac, opus, pcm, …",
        "bit_rate": "bits per second",
        "sample_rate": "samples per second",
        "channels": "1 is mono, 2 is stereo",
        "bits": "bits per sample",
        "title": "as tagged",
        "author": "artist, as tagged",
        "album": "as tagged",
        "album_author": "as tagged",
        "year": "as tagged",
        "genre": "as tagged",
        "track": "number on the album",
        "composer": "as tagged",
        "comment": "as tagged",
        "copyright": "as tagged",
        "encoder": "the program that made it",
        "cover": "whether it has a cover picture",
    },
)
def AUDIO(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes a constant: the decorator makes an Extractor of it
    """Duration, codec and tags of audio."""
    from frazil.extract.media.open_media import open_media

    media = open_media(item)
    sound = media.first("audio")
    seconds = length(media)
    tags = media.tags
    return normalize.drop_empty(
        container=media.container,
        duration=seconds,
        codec=sound and sound.codec,
        bit_rate=(sound and sound.bit_rate) or overall_rate(item.size, seconds),
        sample_rate=sound and sound.sample_rate,
        channels=sound and sound.channels,
        bits=sound and sound.bits,
        year=year(tags.get("date")),
        track=normalize.count(str(tags.get("track", "")).partition("/")[0]),
        cover=media.cover,
        **{
            name: normalize.text(tags.get(name))
            for name in (
                "title",
                "author",
                "album",
                "album_author",
                "genre",
                "composer",
                "comment",
                "copyright",
                "encoder",
            )
        },
    )
