"""The sample photos are what cameras make: pictures with EXIF and GPS, and some of them twice."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

from PIL import Image

from frazil.demo.pictures import photos, write


def test_the_photos_are_pictures_with_camera_time_and_place():
    made = list(photos(40))
    for photo in made:
        image = Image.open(io.BytesIO(photo.data))
        image.load()
        tags, exif, gps = image.getexif(), image.getexif().get_ifd(0x8769), image.getexif().get_ifd(0x8825)
        assert (image.format == "JPEG" and tags[0x0110] and exif[0x9003][:4] in photo.key) or "copies" in photo.key
        assert bool(gps) == ("garden" not in tags[0x010E].lower())
    south = next(photo for photo in made if "cape-town" in photo.key)
    gps = Image.open(io.BytesIO(south.data)).getexif().get_ifd(0x8825)
    assert (gps[1], gps[3]) == ("S", "E") and gps[2][0] == 33


def test_some_are_there_twice_and_the_same_call_makes_the_same(tmp_path: Path):
    made = list(photos(60))
    assert sorted(Counter(photo.data for photo in made).values())[-4:] == [1, 2, 2, 2]
    assert made == list(photos(60)) and made[0] != next(iter(photos(1, seed=8)))
    total = write(tmp_path, 60)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 60 and sum(path.stat().st_size for path in files) == total
