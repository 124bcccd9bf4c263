"""Backup and restore of Iceberg tables: a portable repository, from which tables come back with their history."""
