"""Looks inside objects: extractors, and the Spark job that runs them."""
