"""What is done to a log besides writing and reading it: retention, import, verify, repair."""
