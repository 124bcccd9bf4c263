"""Maintenance of a log: retention, import, verification, repair."""
