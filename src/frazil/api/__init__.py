"""The HTTP API of `frazil serve`: parse, call, answer."""
