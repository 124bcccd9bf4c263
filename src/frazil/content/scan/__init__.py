"""Lists and watches buckets and folders, and publishes observations to the log."""
