"""Reads rows of a table without a JVM: planning, ordered scans, rows by file and position, columns by block."""
