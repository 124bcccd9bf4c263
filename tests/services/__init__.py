"""Real servers for tests and for trying things by hand, without Docker. `python -m tests.services up` shows them."""
