"""Extractors that recognize what a picture shows: labels and text."""
