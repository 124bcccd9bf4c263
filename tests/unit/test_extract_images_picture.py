"""`picture` and `hash`: what needs the pixels, or all of the bytes."""

from __future__ import annotations

import hashlib
import io
import struct
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from frazil.extract import Limits, TooMuch, Unsupported
from frazil.extract.digest import HASH
from frazil.extract.images.decode import picture_of
from frazil.extract.images.image import IMAGE
from frazil.extract.images.perceptual_hash import distance, perceptual_hash
from frazil.extract.images.picture import PICTURE
from frazil.extract.window import Damaged
from tests import extract_files as files
from tests.extract_kit import FileItem, MemoryItem, look


def seen(data: bytes, key: str = "a") -> tuple[dict[str, object], Image.Image]:
    item = MemoryItem(data, key)
    found = PICTURE.look(item)
    thumbnail = Image.open(io.BytesIO(item.shared["thumbnail"]))
    assert thumbnail.format == "WEBP"
    return found, thumbnail


def test_a_thumbnail_fits_into_256_pixels_and_keeps_its_shape():
    for size, small in (
        ((1200, 900), (256, 192)),
        ((900, 1200), (192, 256)),
        ((100, 50), (100, 50)),
        ((3000, 3), (256, 1)),
    ):
        found, thumbnail = seen(files.jpeg(size))
        assert thumbnail.size == small
        assert found["thumbnail"] is True


def test_every_format_looks_the_same():
    expected = str(look(PICTURE, files.png((400, 300)))["perceptual"])
    preview = files.jpeg((400, 300))
    made = [files.jpeg((400, 300)), files.webp((400, 300)), files.gif((400, 300)), files.bmp((400, 300))]
    made += [files.avif((400, 300)), files.tiff((400, 300)), files.tiff((400, 300), compression="tiff_lzw")]
    made += [files.jpeg((400, 300), progressive=True)]
    made += [files.raw(kind, preview=preview) for kind in ("cr2", "nef", "arw", "dng", "raf", "orf", "rw2", "cr3")]
    for data in made:
        item = MemoryItem(data)
        found = PICTURE.look(item)
        assert distance(found["perceptual"], expected) <= 6, item.detected_type


def test_orientation_is_applied():
    upright = files.picture((400, 300), 5)
    _, expected = seen(files.png(image=upright))
    turned = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    turned |= {2: Image.Transpose.FLIP_LEFT_RIGHT, 5: Image.Transpose.TRANSPOSE}
    for orientation, how in turned.items():
        stored = upright.transpose(how)
        for make in (files.jpeg, files.png):
            _, thumbnail = seen(make(image=stored, exif=files.exif(orientation=orientation)))
            assert thumbnail.size == expected.size
            difference = np.abs(np.asarray(thumbnail, dtype=int) - np.asarray(expected, dtype=int))
            assert difference.mean() < 6, (orientation, make)


def test_an_avif_is_turned_by_its_boxes():
    _, thumbnail = seen(files.avif((400, 300), exif=files.exif(orientation=6)))
    assert thumbnail.size == (192, 256)


def test_alike_pictures_differ_in_few_bits_and_others_in_many():
    pictures = [files.picture((800, 600), seed) for seed in range(12)]
    hashes = [perceptual_hash(picture) for picture in pictures]
    for picture, known in zip(pictures, hashes, strict=True):
        changed = [
            picture.resize((200, 150)),
            picture.resize((1000, 700)),
            ImageEnhance.Brightness(picture).enhance(0.8),
        ]
        changed += [picture.crop((8, 6, 792, 594)), Image.open(io.BytesIO(files.jpeg(image=picture, quality=20)))]
        assert max(distance(perceptual_hash(other), known) for other in changed) <= 10
    apart = [distance(a, b) for i, a in enumerate(hashes) for b in hashes[:i]]
    assert min(apart) > 14
    assert all(len(known) == 16 for known in hashes)


def test_the_embedded_thumbnail_is_not_what_is_hashed():
    other = files.jpeg((160, 120), seed=9)
    with_other = look(PICTURE, files.jpeg((400, 300), exif=files.exif(thumbnail=other)))["perceptual"]
    assert with_other == look(PICTURE, files.jpeg((400, 300)))["perceptual"]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16", "F", "RGB"])
def test_every_kind_of_colour_is_shown(mode: str):
    grey = files.picture((300, 300), 3).convert("L")
    image = grey.convert("RGB").convert(mode) if mode not in ("I;16", "F") else grey
    if mode == "I;16":
        image = Image.fromarray(np.asarray(grey, dtype=np.uint16) * 257)
    if mode == "F":
        image = Image.fromarray(np.asarray(grey, dtype=np.float32) * 1e6 - 5)
    file = io.BytesIO()
    image.save(file, "TIFF" if mode == "F" else "PNG")
    found = look(PICTURE, file.getvalue())
    assert distance(found["perceptual"], perceptual_hash(grey)) <= (16 if mode == "1" else 4)


def test_what_is_transparent_becomes_white():
    found = look(PICTURE, files.png(image=Image.new("RGBA", (50, 50), (255, 0, 0, 0))))
    assert found["colour"] == "#ffffff"
    assert look(PICTURE, files.png(image=Image.new("RGB", (50, 50), (16, 32, 200))))["colour"] == "#1020c8"


def test_a_cmyk_jpeg_is_decoded():
    _, thumbnail = seen(files.jpeg(image=files.picture((300, 300)).convert("CMYK")))
    assert thumbnail.size == (256, 256)


def test_others_get_the_picture_that_was_decoded():
    item = MemoryItem(files.jpeg((2000, 1600)))
    PICTURE.look(item)
    read = len(item.reads)
    small = picture_of(item, 224)
    assert small is item.shared["picture"]
    assert len(item.reads) == read
    assert (small.mode, 256 <= min(small.size) < 512) == ("RGB", True)
    assert min(picture_of(item, 900).size) >= 900
    assert picture_of(item, 5000).size == (2000, 1600)


def test_a_small_picture_is_given_as_it_is():
    assert picture_of(MemoryItem(files.png((40, 30))), 224).size == (40, 30)


def png_that_says(width: int, height: int) -> bytes:
    head = files.chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + files.chunk(b"IDAT", b"\x78\x9c") + files.chunk(b"IEND", b"")


def bombs() -> list[bytes]:
    tags = {0x0100: (4, 90_000), 0x0101: (4, 90_000), 0x0102: (3, 8), 0x0103: (3, 1), 0x0106: (3, 1)}
    frame = files.jpeg((32, 32))
    at = frame.index(b"\xff\xc0")
    jpeg = frame[: at + 5] + b"\xff\xff\xff\xff" + frame[at + 9 :]
    return [
        png_that_says(100_000, 100_000),
        b"GIF89a\xff\xff\xff\xff\0\0\0" + b"\0" * 50,
        files.tiff_block(tags),
        jpeg,
        files.heic((60_000, 60_000)),
        files.raw("cr2", preview=jpeg),
    ]


def test_a_bomb_within_an_icon_is_not_decoded():
    bomb = png_that_says(60_000, 60_000)
    icon = struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 0, 0, 0, 0, 1, 32, len(bomb), 22) + bomb
    with pytest.raises(TooMuch, match="exceeds limit"):
        look(PICTURE, icon)


@pytest.mark.parametrize("data", bombs(), ids=["png", "gif", "tiff", "jpeg", "heic", "preview"])
def test_a_picture_of_too_many_pixels_is_not_decoded(data: bytes):
    item = MemoryItem(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TooMuch, match="pixels are more than 200000000"):
            PICTURE.look(item)
    assert IMAGE.look(item)["width"] > 5_000


def test_the_limit_of_pixels_is_that_of_the_item_and_not_pillows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert look(PICTURE, files.png((300, 300)))["thumbnail"] is True
    with pytest.raises(TooMuch, match="300 x 300"):
        look(PICTURE, files.png((300, 300)), limits=Limits(max_pixels=89_999))


def test_a_jpeg_of_2_gb_is_not_read(tmp_path: Path):
    path = tmp_path / "huge.jpg"
    with path.open("wb") as file:
        file.write(files.jpeg(exif=files.exif()))
        file.truncate(2 << 30)
    item = FileItem(path)
    assert IMAGE.look(item)["camera"] == "Canon EOS R5"
    with pytest.raises(TooMuch):
        PICTURE.look(item)
    with pytest.raises(TooMuch):
        HASH.look(item)
    assert item.bytes_read < 16_384


def test_nothing_but_zeros_is_no_jpeg(tmp_path: Path):
    path = tmp_path / "zeros.jpg"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    item = FileItem(path)
    assert item.detected_type == "application/octet-stream"
    assert item.bytes_read == 4096


def test_storage_that_fails_is_not_mistaken_for_a_damaged_picture(monkeypatch: pytest.MonkeyPatch):
    item = MemoryItem(files.jpeg())

    def gone() -> bytes:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(item, "whole", gone)
    with pytest.raises(ConnectionResetError):
        PICTURE.look(item)


def test_what_cannot_be_decoded_says_so(monkeypatch: pytest.MonkeyPatch):
    assert not PICTURE.takes("image/svg+xml")
    with pytest.raises(Unsupported, match=r"image/svg\+xml is not decoded"):
        picture_of(MemoryItem(b"<svg/>"))
    with pytest.raises(Unsupported, match="preview"):
        look(PICTURE, files.raw("cr2"))
    with pytest.raises(Unsupported, match="preview"):
        look(PICTURE, files.raw("cr2", preview=b"no JPEG at all"))
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    with pytest.raises(Unsupported, match=r"pip install 'frazil\[heic\]'"):
        look(PICTURE, files.heic())


def test_a_damaged_picture_fails_with_the_reason():
    with pytest.raises(Damaged, match="truncated"):
        look(PICTURE, files.jpeg()[:4000])
    with pytest.raises(Damaged, match="cannot be decoded"):
        look(PICTURE, files.heic())
    with pytest.raises(Damaged, match="cannot be decoded"):
        look(PICTURE, png_that_says(50, 50))


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (3 << 20) + 7])
def test_the_hash_is_that_of_the_content(size: int):
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    item = MemoryItem(data, detected_type="application/octet-stream")
    assert HASH.look(item) == {"sha256": hashlib.sha256(data).hexdigest()}


def test_the_hash_of_more_than_the_limit_is_not_made():
    item = MemoryItem(b"12345", limits=Limits(max_bytes=4), detected_type="text/plain")
    with pytest.raises(TooMuch, match="5 bytes are more than 4"):
        HASH.look(item)
    assert item.reads == []
