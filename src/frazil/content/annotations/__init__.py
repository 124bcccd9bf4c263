"""Annotations of rows in `content.objects`: extraction results, edits by people, changes of custom columns."""
