"""A perceptual hash: similar pictures differ in few of its 64 bits."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

_SIDE = 32
_KEPT = 8


@cache
def _cosines() -> Any:
    """Returns the first rows of the DCT-II of 32 values, without the mean, which carries no information."""
    import numpy as np

    rows = np.arange(1, _KEPT + 1)[:, None]
    columns = np.arange(_SIDE)[None, :]
    return np.cos(math.pi * rows * (2 * columns + 1) / (2 * _SIDE))


def perceptual_hash(image: Image) -> str:
    """Computes 64 bits as 16 hex digits: which of the 8 × 8 lowest frequencies are above their median."""
    import numpy as np
    from PIL.Image import Resampling

    grey = image.convert("L").resize((_SIDE, _SIDE), Resampling.BOX)
    values = np.asarray(grey, dtype=np.float64)
    low = _cosines() @ values @ _cosines().T
    bits = (low > np.median(low)).flatten()
    return f"{int.from_bytes(np.packbits(bits).tobytes(), 'big'):016x}"


def distance(one: str, other: str) -> int:
    """Returns the number of differing bits: up to about 10 the pictures are similar."""
    return (int(one, 16) ^ int(other, 16)).bit_count()
