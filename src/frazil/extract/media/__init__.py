"""Extractors of audio and video, and readers of their containers."""
