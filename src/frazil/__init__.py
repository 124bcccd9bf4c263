"""Frazil: the metadata of objects and documents, frozen into Apache Iceberg."""

from frazil.version import __version__ as __version__
