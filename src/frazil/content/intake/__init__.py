"""Intake of events by HTTP (`frazil.api.events`), queue or files. Each is durable before it is acknowledged."""
