"""Queries of objects: lists, searches, facets, duplicates, sums, export. No JVM (decision 0068)."""
