"""Relocation: an Iceberg table's metadata and delete files with other paths in them, and nothing else changed.

Pure functions on bytes and records, without storage, catalog or JVM. Call them bottom-up, so that every length is
measured: delete files, then manifests, then manifest lists, then metadata.json. See docs/relocation.md.
"""

from frazil.tables.relocation.prefixes import PrefixMap, UnmappedPathError

__all__ = ["PrefixMap", "UnmappedPathError"]
