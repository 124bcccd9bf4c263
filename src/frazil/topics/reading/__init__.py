"""The union reader: the table first, then the log, as one stream."""
