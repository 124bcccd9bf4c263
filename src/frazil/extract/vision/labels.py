"""The extractor `labels`: labels of a picture by a local model (`frazil[labels]`)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from frazil.extract import Item, Unsupported, extractor
from frazil.extract.images.decode import DECODED, picture_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from frazil.extract.vision.checkpoint import Array

#: Install it with: pip install 'frazil[labels]'
EXTRA: Final = "labels"
#: Minimum percentage of a class; a broader name, to which many unlikely classes add up, needs more.
LEAST: Final = 10.0
LEAST_BROADER: Final = 30.0
MOST: Final = 10
#: The fraction of the shorter side that the model was trained on.
_CENTRE: Final = 0.875


def available() -> str | None:
    """Returns why it cannot run here; None if it can."""
    from frazil.extract.vision.model import find_missing

    return find_missing()


@extractor(
    "labels",
    version="1",
    types=DECODED,
    reads="whole",
    alone=True,
    fields={
        "Name": "one of 1,000 classes, or a broader name such as cat, car or food",
        "Confidence": "percent",
        "Broader": "true for a broader name, whose confidence is the sum of its classes",
    },
)
def LABELS(item: Item) -> list[dict[str, Any]]:  # noqa: N802 - becomes an Extractor
    """Labels of an image, by EfficientNet-Lite0 on this machine; at most ten, highest confidence first."""
    reason = available()
    if reason:
        raise Unsupported(reason)
    from frazil.extract.vision import network
    from frazil.extract.vision.model import load_session

    picture = picture_of(item, network.SIDE)
    (probabilities,) = load_session().run([network.OUTPUT], {network.INPUT: pixels(picture)})
    return select_labels(probabilities[0])


def pixels(picture: Image) -> Array:
    """Returns the centre of a picture as the model's input."""
    import numpy as np
    from PIL.Image import Resampling

    from frazil.extract.vision.network import SIDE

    width, height = picture.size
    side = min(width, height) * _CENTRE
    left, top = (width - side) / 2, (height - side) / 2
    rgb = picture if picture.mode == "RGB" else picture.convert("RGB")
    small = rgb.resize((SIDE, SIDE), Resampling.BILINEAR, box=(left, top, left + side, top + side))
    planes = np.asarray(small).transpose(2, 0, 1).astype(np.float32, order="C")
    planes -= 127
    planes /= 128
    return planes[None]


def select_labels(probabilities: Array) -> list[dict[str, Any]]:
    """Returns the labels that are likely enough, and the broader names that their classes add up to."""
    from frazil.extract.vision.classes import broader_names, class_names

    percent = probabilities * 100
    together = _members() @ percent
    found = {class_names()[n]: _label(class_names()[n], percent[n]) for n in (percent >= LEAST).nonzero()[0]}
    for name, sum_of_classes in zip(broader_names(), together, strict=True):
        if sum_of_classes >= LEAST_BROADER:
            found[name] = _label(name, sum_of_classes) | {"Broader": True}
    return sorted(found.values(), key=lambda label: -label["Confidence"])[:MOST]


@cache
def _members() -> Array:
    """Returns a matrix with a row per broader name and 1 at its classes, so that one product sums them all."""
    import numpy as np

    from frazil.extract.vision.classes import broader_names, class_names

    rows = np.zeros((len(broader_names()), len(class_names())), np.float32)
    for row, classes in zip(rows, broader_names().values(), strict=True):
        row[list(classes)] = 1
    return rows


def _label(name: str, percent: Any) -> dict[str, Any]:
    return {"Name": name, "Confidence": round(min(float(percent), 100.0), 1)}
