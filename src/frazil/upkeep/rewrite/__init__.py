"""What writes files or metadata anew: compaction, deletes, manifests, statistics, partitions, retention."""
