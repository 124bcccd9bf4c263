"""Sample photos, drawn on the spot: JPEGs with EXIF and GPS as cameras write them, some of them twice."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

#: Maker, model and lens.
_CAMERAS = (
    ("Canon", "Canon EOS R5", "RF24-105mm F4 L IS USM"),
    ("Apple", "iPhone 15 Pro", "iPhone 15 Pro back camera 6.765mm f/1.78"),
    ("FUJIFILM", "X-T5", "XF35mmF1.4 R"),
    ("NIKON CORPORATION", "NIKON Z 6", "NIKKOR Z 50mm f/1.8 S"),
)
_OFTEN = (9, 7, 4, 2)
#: Album, and degrees of latitude and longitude; none: the camera did not know.
_PLACES = (
    ("lisbon", (38.7139, -9.1394)),
    ("reykjavik", (64.1466, -21.9426)),
    ("kyoto", (35.0116, 135.7681)),
    ("cape-town", (-33.9249, 18.4241)),
    ("garden", None),
)
_YEARS = range(2021, 2026)
_SIZES = ((640, 480), (480, 640), (800, 600))
#: One in so many is a copy of the one before, under another name.
_COPIES = 20
#: Tags: https://exiv2.org/tags.html
_MAKE, _MODEL, _ARTIST, _TITLE, _EXIF, _GPS = 0x010F, 0x0110, 0x013B, 0x010E, 0x8769, 0x8825
_TAKEN, _OFFSET, _EXPOSURE, _APERTURE, _ISO, _FOCAL, _LENS = 0x9003, 0x9011, 0x829A, 0x829D, 0x8827, 0x920A, 0xA434


@dataclass(frozen=True)
class Photo:
    """A picture as a file: where it lies below its folder, and its bytes."""

    key: str
    data: bytes


def photos(count: int, seed: int = 7) -> Iterator[Photo]:
    """The same ones for the same count and seed."""
    chance = random.Random(seed)  # noqa: S311 - guards nothing
    before: Photo | None = None
    for number in range(count):
        place, degrees = chance.choice(_PLACES)
        year = chance.choice(_YEARS)
        taken = datetime(year, 1, 1) + timedelta(minutes=chance.randrange(365 * 24 * 60), seconds=chance.randrange(60))
        if before is not None and number % _COPIES == _COPIES - 1:
            yield Photo(f"copies/{Path(before.key).stem} (1).jpg", before.data)
            continue
        maker, model, lens = chance.choices(_CAMERAS, _OFTEN)[0]
        tags = _tags(chance, maker, model, lens, taken, degrees, f"{place.replace('-', ' ').title()} {number}")
        before = Photo(f"{year}/{place}/IMG_{number:05d}.jpg", _jpeg(_drawn(chance, chance.choice(_SIZES)), tags))
        yield before


def write(folder: Path | str, count: int, seed: int = 7) -> int:
    """Writes so many photos below a folder, and returns their bytes."""
    total = 0
    for photo in photos(count, seed):
        path = Path(folder) / photo.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo.data)
        total += len(photo.data)
    return total


def _drawn(chance: random.Random, size: tuple[int, int]) -> Image.Image:
    """A sky, hills and a sun: no two alike."""
    from PIL import Image, ImageDraw

    width, height = size
    top, bottom = ([chance.randrange(256) for _ in range(3)] for _ in range(2))
    sky = Image.new("RGB", (1, 64))
    sky.putdata([tuple(int(a + (b - a) * y / 63) for a, b in zip(top, bottom, strict=True)) for y in range(64)])
    image = sky.resize(size)
    draw = ImageDraw.Draw(image)
    x, y, r = chance.randrange(width), chance.randrange(height // 2), chance.randrange(20, 80)
    draw.ellipse((x - r, y - r, x + r, y + r), fill=_colour(chance))
    for level in (0.55, 0.7, 0.85):
        ridge = [(at, int(height * (level + chance.uniform(-0.12, 0.12)))) for at in range(0, width + 1, width // 8)]
        draw.polygon([(0, height), *ridge, (width, height)], fill=_colour(chance))
    return image


def _colour(chance: random.Random) -> tuple[int, int, int]:
    return chance.randrange(256), chance.randrange(256), chance.randrange(256)


def _tags(
    chance: random.Random,
    maker: str,
    model: str,
    lens: str,
    taken: datetime,
    degrees: tuple[float, float] | None,
    title: str,
) -> Image.Exif:
    from PIL import Image
    from PIL.TiffImagePlugin import IFDRational

    tags = Image.Exif()
    tags[_MAKE], tags[_MODEL], tags[_ARTIST], tags[_TITLE] = maker, model, "A. Person", title
    tags.get_ifd(_EXIF).update(
        {
            _TAKEN: f"{taken:%Y:%m:%d %H:%M:%S}",
            _OFFSET: "+01:00",
            _EXPOSURE: IFDRational(1, chance.choice((60, 125, 250, 1000))),
            _APERTURE: IFDRational(chance.choice((18, 28, 40, 80)), 10),
            _ISO: chance.choice((100, 200, 400, 1600)),
            _FOCAL: IFDRational(chance.choice((24, 35, 50, 105)), 1),
            _LENS: lens,
        }
    )
    if degrees is not None:
        latitude, longitude = (value + chance.uniform(-0.05, 0.05) for value in degrees)
        tags.get_ifd(_GPS).update(
            {
                0: b"\x02\x03\x00\x00",
                1: "N" if latitude >= 0 else "S",
                2: _parts(latitude),
                3: "E" if longitude >= 0 else "W",
                4: _parts(longitude),
            }
        )
    return tags


def _parts(degrees: float) -> tuple[Any, Any, Any]:
    """Degrees, minutes and seconds."""
    from PIL.TiffImagePlugin import IFDRational

    hundredths = round(abs(degrees) * 360_000)
    whole, rest = divmod(hundredths, 360_000)
    minutes, seconds = divmod(rest, 6000)
    return IFDRational(whole, 1), IFDRational(minutes, 1), IFDRational(seconds, 100)


def _jpeg(image: Image.Image, tags: Image.Exif) -> bytes:
    made = io.BytesIO()
    image.save(made, "JPEG", quality=80, exif=tags)
    return made.getvalue()
