"""Relocation: table metadata rewritten for other paths, as pure functions of bytes and records."""
