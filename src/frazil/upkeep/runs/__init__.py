"""Runs plans: on request, for many tables, and between batches of the pipeline; keeps the history."""
