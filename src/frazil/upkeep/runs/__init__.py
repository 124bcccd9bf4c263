"""Runs plans: by hand, for many tables, and in turns with the sinks of the pipeline; keeps what was done."""
