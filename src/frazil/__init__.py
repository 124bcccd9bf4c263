"""Frazil keeps the metadata of objects and documents in Apache Iceberg."""

__version__ = "0.1.0"
