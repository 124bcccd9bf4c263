"""Decodes a picture once, at the smallest sufficient size, for all extractors that read pixels."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from frazil.extract import Item, TooMuch, Unsupported
from frazil.extract.images.header import Header
from frazil.extract.images.jpeg import read_jpeg
from frazil.extract.images.read_header import read_header
from frazil.extract.window import Damaged, Window

if TYPE_CHECKING:
    from PIL.Image import Image

#: Media type → the only Pillow format allowed, which excludes formats that start other programs.
_FORMATS = {
    "image/jpeg": "JPEG", "image/png": "PNG", "image/webp": "WEBP", "image/tiff": "TIFF", "image/gif": "GIF",
    "image/bmp": "BMP", "image/avif": "AVIF", "image/jp2": "JPEG2000", "image/vnd.microsoft.icon": "ICO",
    "image/vnd.adobe.photoshop": "PSD", "image/x-portable-anymap": "PPM", "image/x-tga": "TGA", "image/qoi": "QOI",
}  # fmt: skip
_HEIF, _HEIF_TYPES = "HEIF", ("image/heic", "image/heif")
#: Media types that can be decoded.
DECODED = (*_FORMATS, *_HEIF_TYPES, "image/x-canon-cr2", "image/x-canon-cr3", "image/x-nikon-nef", "image/x-sony-arw",
           "image/x-adobe-dng", "image/x-olympus-orf", "image/x-panasonic-rw2", "image/x-pentax-pef",
           "image/x-samsung-srw", "image/x-fuji-raf")  # fmt: skip


def picture_of(item: Item, min_side: int = 256) -> Image:
    """Decodes the picture as it is shown, in RGB, reduced while its shorter side stays at least `min_side`.

    It is kept in `item.shared["picture"]`: do not change it, copy it.

    Raises:
        Unsupported: nothing here decodes this format.
        TooMuch: it has more pixels, or bytes, than the limits say.
        Damaged: it is damaged.
    """
    kept: tuple[Image, int | None] | None = item.shared.get("picture_kept")
    if kept is not None and (kept[1] is None or kept[1] >= min_side):
        return kept[0]
    data, name, orientation = _source(item)
    _prepare(item.limits.max_pixels)
    try:
        decoded, reduced = _decoded(data, name, min_side, item)
    except (Unsupported, TooMuch, MemoryError):
        raise
    except Exception as failure:
        # Pillow passes on any error of its readers.
        kind = TooMuch if type(failure).__name__ == "DecompressionBombError" else Damaged
        raise kind(f"cannot be decoded: {failure or type(failure).__name__}") from failure
    image: Image = _apply_orientation(decoded, orientation)
    item.shared["picture"] = image
    item.shared["picture_kept"] = (image, min_side if reduced else None)
    return image


def _prepare(pixels: int) -> None:
    """Sets Pillow's pixel limit to the item's, which then also applies to nested pictures, such as icons.

    Both are of the process, and stay: another thread may be decoding.
    """
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = pixels // 2  # beyond it Pillow warns, beyond twice of it Pillow refuses
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    warnings.filterwarnings("ignore", module=r"PIL\.")  # of broken EXIF: `image` tells


def _source(item: Item) -> tuple[bytes, str, int]:
    """Returns the bytes to decode, their format, and the orientation to apply."""
    header = read_header(item)
    name = _FORMATS.get(item.detected_type) or (_HEIF if item.detected_type in _HEIF_TYPES else None)
    if name is not None:
        _check(item, header.width, header.height)
        # The HEIC decoder applies the orientation itself.
        return item.whole(), name, 1 if name == _HEIF else header.orientation
    if header.previews:
        return _preview(item), "JPEG", header.orientation
    raise Unsupported(f"{item.detected_type} is not decoded, and contains no preview")


def _decoded(data: bytes, name: str, min_side: int, item: Item) -> tuple[Any, bool]:
    """Decodes the picture. Returns it, and whether it was reduced."""
    from PIL import Image

    image: Any = _heif(data, item) if name == _HEIF else Image.open(io.BytesIO(data), formats=[name])
    whole = image.size
    _check(item, *whole)
    if image.format in ("JPEG", "MPO"):
        image.draft(None, _wanted(whole, min_side))
    image.load()
    image = _reduced(_colours(image), min_side)
    return _rgb(image), image.size != whole


def _check(item: Item, width: int | None, height: int | None) -> None:
    if width and height and width * height > item.limits.max_pixels:
        raise TooMuch(f"{width} x {height} pixels are more than {item.limits.max_pixels}")


def _heif(data: bytes, item: Item) -> Any:
    try:
        import pi_heif  # type: ignore[import-untyped]
    except ImportError as failure:
        raise Unsupported("decoding HEIC needs pip install 'frazil[heic]'") from failure
    wanted = pi_heif.options
    wanted.THUMBNAILS = wanted.DEPTH_IMAGES = wanted.AUX_IMAGES = False
    wanted.DECODE_THREADS = 1  # whoever runs extractors has a process for each core
    picture = pi_heif.open_heif(io.BytesIO(data), convert_hdr_to_8bit=True)
    _check(item, *picture.size)
    return picture.to_pillow()


def _preview(item: Item) -> bytes:
    """Returns the largest preview that is a baseline JPEG."""
    best: tuple[int, int, Window] | None = None
    for window in read_header(item).previews:
        inside = Header("JPEG")
        try:
            usual = window.get(0, 2) == b"\xff\xd8" and read_jpeg(window, inside)
        except Damaged:
            continue
        width, height = inside.width or 0, inside.height or 0
        if usual and width * height > (best[0] * best[1] if best else 0):
            best = width, height, window
    if best is None:
        raise Unsupported("a RAW file without a preview")
    width, height, window = best
    _check(item, width, height)
    if window.size > item.limits.max_bytes:
        raise TooMuch(f"a preview of {window.size} bytes is more than {item.limits.max_bytes}")
    return item.read(window.start, window.size)


def _wanted(size: tuple[int, int], min_side: int) -> tuple[int, int]:
    scale = min(1.0, min_side / max(1, min(size)))
    return max(1, int(size[0] * scale)), max(1, int(size[1] * scale))


def _colours(image: Any) -> Any:
    """Converts to colours that can be averaged: no palettes, eight bits."""
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if "transparency" in image.info or image.mode == "PA" else "RGB")
    if image.mode == "1":
        return image.convert("L")
    if image.mode.startswith(("I", "F")):
        low, high = (0, 65535) if image.mode.startswith("I;16") else image.getextrema()
        scale = 255 / (high - low) if high > low else 0
        return image.convert("F").point(lambda value: value * scale - low * scale).convert("L")
    return image


def _reduced(image: Any, min_side: int) -> Any:
    factor = min(image.size) // max(1, min_side)
    return image.reduce(factor) if factor > 1 else image


def _rgb(image: Any) -> Any:
    """Converts to RGB; transparent pixels become white."""
    from PIL import Image

    if image.mode in ("RGBA", "LA", "RGBa", "La"):
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(ground, image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _apply_orientation(image: Any, orientation: int) -> Any:
    from PIL.Image import Transpose

    how = {
        2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
    }.get(orientation)  # fmt: skip
    return image if how is None else image.transpose(how)
