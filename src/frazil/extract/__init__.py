"""What is inside objects: extractors, and the processes that run them. Bytes in, JSON out.

The names listed here are the public interface for plugins; see `frazil.extract.api`.
"""

from frazil.extract.api import Extractor, Item, Limits, Look, Reads, TooMuch, Unsupported, extractor

__all__ = ["Extractor", "Item", "Limits", "Look", "Reads", "TooMuch", "Unsupported", "extractor"]
