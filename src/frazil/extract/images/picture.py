"""The extractor `picture`: thumbnail, main colour and perceptual hash, which need the pixels."""

from __future__ import annotations

import io
from typing import Any

from frazil.extract import Item, extractor
from frazil.extract.images.decode import DECODED, picture_of
from frazil.extract.images.perceptual_hash import perceptual_hash

#: Maximum pixels of the longer side of a thumbnail.
THUMBNAIL = 256


@extractor(
    "picture",
    version="1",
    types=DECODED,
    reads="whole",
    alone=True,
    fields={
        "perceptual": "perceptual hash, 16 hex digits: similar images differ in few bits",
        "thumbnail": "true: a thumbnail was created",
        "colour": "dominant colour, as #rrggbb",
    },
)
def PICTURE(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes an Extractor
    """Decodes an image for its thumbnail, its colour and a perceptual hash for similarity search."""
    image = picture_of(item, THUMBNAIL)
    small = image.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL), reducing_gap=None)
    file = io.BytesIO()
    small.save(file, "WEBP", quality=75, method=2)
    item.shared["thumbnail"] = file.getvalue()
    return {"perceptual": perceptual_hash(image), "thumbnail": True, "colour": _colour(small)}


def _colour(image: Any) -> str | None:
    """Returns the centre of the fullest of 4,096 colour bins, so that a few bright spots do not count."""
    import numpy as np

    pixels = np.asarray(image.resize((64, 64)), dtype=np.uint8).reshape(-1, 3)
    bins = pixels >> 4
    keys = (bins[:, 0].astype(np.int32) << 8) | (bins[:, 1].astype(np.int32) << 4) | bins[:, 2]
    fullest = np.bincount(keys).argmax()
    red, green, blue = pixels[keys == fullest].mean(axis=0).round().astype(int)
    return f"#{red:02x}{green:02x}{blue:02x}"
