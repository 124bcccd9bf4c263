"""Extractors for documents, sounds, films, texts and archives."""
