"""Extractors of documents and texts."""
