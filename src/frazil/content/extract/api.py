"""The former name of `frazil.extract`, for plugins that import it."""

from frazil.extract import Extractor, Item, Limits, Look, Reads, TooMuch, Unsupported, extractor

__all__ = ["Extractor", "Item", "Limits", "Look", "Reads", "TooMuch", "Unsupported", "extractor"]
