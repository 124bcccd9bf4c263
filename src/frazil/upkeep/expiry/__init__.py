"""Removal of snapshots, later of their files, and of orphan files; pins that prevent it."""
