"""The store of documents in Iceberg: writes go through the topic log, reads come from a local projection."""
