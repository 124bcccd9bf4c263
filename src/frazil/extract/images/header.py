"""The headers of a picture, independent of its format."""

from __future__ import annotations

from dataclasses import dataclass, field

from frazil.extract.images.tiff import Tiff
from frazil.extract.window import Window


@dataclass
class Header:
    """A picture's headers; each format fills in what it has.

    Attributes:
        format: its name as Pillow has it, or that of the RAW format.
        width: of the picture as it is stored; None: not found.
        height: of the picture as it is stored; None: not found.
        orientation: as EXIF counts it, 1 to 8: how the stored picture is turned to be shown.
        mode: of the colours, as Pillow calls it: RGB, L, CMYK …
        frames: pages or frames, if known.
        tiff: EXIF.
        xmp: where the XMP packet lies, or the packet itself if it was compressed.
        iptc: where the IPTC records lie.
        texts: named texts (PNG).
        previews: JPEG files within a RAW file.
        warnings: what was wrong and left out.
    """

    format: str
    width: int | None = None
    height: int | None = None
    orientation: int = 1
    mode: str | None = None
    frames: int | None = None
    tiff: Tiff | None = None
    xmp: Window | bytes | None = None
    iptc: Window | None = None
    texts: dict[str, str] = field(default_factory=dict)
    previews: list[Window] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
