"""Extractor of archives: lists zip and tar files by their directories."""
