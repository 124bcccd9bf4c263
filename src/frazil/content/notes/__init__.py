"""Messages about rows of `content.objects` that are no events: results of extraction, edits of people, fields."""
