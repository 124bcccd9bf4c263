"""Reads and writes the metadata of tables: manifests, reachable files, locations in one spelling."""
