"""Metadata of the documents of an archive: the record and its life cycle, the stores, history, migration."""
