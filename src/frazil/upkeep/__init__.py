"""Upkeep: tables that stay fast and small by themselves."""
