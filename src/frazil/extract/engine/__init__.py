"""Runs extractors on objects, in processes that may hang, crash or run out of memory."""
