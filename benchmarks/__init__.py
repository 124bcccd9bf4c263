"""Measurements; `make bench` runs them and writes RESULTS.md."""
