"""The version of Frazil."""

__version__ = "0.1.0"
