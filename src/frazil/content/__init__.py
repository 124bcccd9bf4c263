"""What is in the buckets: events and observations of objects, as a journal and a table that is right about now."""
