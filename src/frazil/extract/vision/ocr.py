"""The extractor `ocr`: text in a picture (`frazil[ocr]`)."""

from __future__ import annotations

import threading
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

from frazil.extract import Item, Unsupported, extractor
from frazil.extract.images.decode import DECODED, picture_of

#: Install it with: pip install 'frazil[ocr]'
EXTRA: Final = "ocr"
_NEEDED: Final = ("rapidocr", "onnxruntime")
#: Minimum pixels of the shorter side, so that small print stays readable.
_SIDE: Final = 1500

_reading = threading.Lock()


def available() -> str | None:
    """Returns why it cannot run here; None if it can."""
    absent = [name for name in _NEEDED if find_spec(name) is None]
    return f"{', '.join(absent)} not installed; pip install 'frazil[ocr]'" if absent else None


@extractor(
    "ocr",
    version="1",
    types=DECODED,
    reads="whole",
    alone=True,
    default=False,
    fields={
        "text": "all lines, from top to bottom",
        "lines": "each with its `text` and its `confidence` in percent",
    },
)
def OCR(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes an Extractor
    """Text in an image, by RapidOCR on this machine: Latin and Chinese script."""
    reason = available()
    if reason:
        raise Unsupported(reason)
    import numpy as np

    rgb = np.asarray(picture_of(item, _SIDE).convert("RGB"))
    with _reading:  # the reader keeps what it is at in itself
        seen = _reader()(np.ascontiguousarray(rgb[:, :, ::-1]))
    lines = [
        {"text": text, "confidence": round(float(score) * 100, 1)}
        for text, score in zip(seen.txts or (), seen.scores or (), strict=True)
    ]
    return {"text": "\n".join(str(line["text"]) for line in lines), "lines": lines}


@cache
def _reader() -> Any:
    """Returns the reader, whose models are in its package. One thread, because extraction runs one process per core."""
    from rapidocr import RapidOCR

    return RapidOCR(
        params={
            "Global.log_level": "critical",
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )
