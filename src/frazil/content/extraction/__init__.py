"""Runs extractors on the objects of the table, as a Spark job."""
