"""Topics: from the log into tables, exactly once, and back out of both as one stream."""

from frazil.topics.connection import connect, flight_address, log_folder, open_log

__all__ = ["connect", "flight_address", "log_folder", "open_log"]
