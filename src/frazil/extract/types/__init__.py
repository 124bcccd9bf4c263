"""Detects the media type of an object by its first bytes."""
