"""Metadata of objects: events and observations, as a journal and a table of current objects."""
