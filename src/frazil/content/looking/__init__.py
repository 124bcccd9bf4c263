"""Looks at buckets and folders, and tells the log what is there: observations."""
