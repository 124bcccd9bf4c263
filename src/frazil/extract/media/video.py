"""The extractor `video`: duration, size, codecs, time and place."""

from __future__ import annotations

from typing import Any

from frazil.extract import Item, extractor, normalize
from frazil.extract.media.audio import length, overall_rate, year
from frazil.extract.media.model import Media, Stream


def shown(stream: Stream | None) -> tuple[int | None, int | None]:
    """Returns width and height as displayed."""
    if stream is None:
        return None, None
    size = (stream.width, stream.height)
    return size[::-1] if stream.rotation in (90, 270) else size


def camera(media: Media) -> str | None:
    """Joins maker and model, without repeating the maker."""
    make, model = (normalize.text(media.tags.get(name)) for name in ("make", "model"))
    if make and model and not model.lower().startswith(make.lower()):
        return f"{make} {model}"
    return model or make


@extractor(
    "video",
    types=("video/*", "application/mp4", "application/x-matroska", "application/vnd.ms-asf"),
    fields={
        "container": "mp4, quicktime, matroska, webm, avi, ogg, asf",
        "duration": "seconds",
        "width": "pixels, as shown",
        "height": "pixels, as shown",
        "rotation": "rotation in degrees when displayed",
        "codec": "h264, hevc, av1, vp9, …",
        "audio_codec": "aac, opus, …",
        "frame_rate": "frames per second",
        "bit_rate": "bits per second, including audio",
        "sample_rate": "of the audio",
        "channels": "of the audio",
        "taken_at": "time of recording: the camera's clock, or UTC if `taken_offset` says so",
        "taken_offset": "the clock's offset to UTC",
        "latitude": "degrees",
        "longitude": "degrees",
        "altitude": "metres",
        "camera": "maker and model",
        "title": "as tagged",
        "author": "as tagged",
        "year": "as tagged",
        "genre": "as tagged",
        "comment": "as tagged",
        "description": "as tagged",
        "copyright": "as tagged",
        "encoder": "the program that made it",
        "cover": "whether it has a cover picture",
    },
)
def VIDEO(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes a constant: the decorator makes an Extractor of it
    """Duration, size, codecs, time and location of video."""
    from frazil.extract.media.open_media import open_media

    media = open_media(item)
    film, sound = media.first("video"), media.first("audio")
    seconds = length(media)
    width, height = shown(film)
    taken_at, offset = normalize.split_zone(media.taken_at)
    latitude, longitude, altitude = media.place or (None, None, None)
    return normalize.drop_empty(
        container=media.container,
        duration=seconds,
        width=width,
        height=height,
        rotation=(film and film.rotation) or None,
        codec=film and film.codec,
        audio_codec=sound and sound.codec,
        frame_rate=film and film.frame_rate,
        bit_rate=overall_rate(item.size, seconds),
        sample_rate=sound and sound.sample_rate,
        channels=sound and sound.channels,
        taken_at=taken_at,
        taken_offset=offset,
        latitude=latitude,
        longitude=longitude,
        altitude=altitude,
        camera=camera(media),
        year=year(media.tags.get("date")),
        cover=media.cover,
        **{
            name: normalize.text(media.tags.get(name))
            for name in ("title", "author", "genre", "comment", "description", "copyright", "encoder")
        },
    )
