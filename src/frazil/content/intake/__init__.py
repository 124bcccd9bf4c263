"""How events come in: by HTTP (`frazil.api.events`), from a queue, from files. Each is durable before it is let go."""
