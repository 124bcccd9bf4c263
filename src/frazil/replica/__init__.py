"""Replica: serves tables from a copy of their storage, at the newest committed version that has arrived completely."""
