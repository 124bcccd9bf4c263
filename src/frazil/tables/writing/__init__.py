"""Writes data files and position deletes of a table; the driver commits them."""
