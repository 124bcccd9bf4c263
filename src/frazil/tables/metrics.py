"""The metrics of commits."""

from __future__ import annotations

from frazil.observe.metrics import counter

COMMITS = counter("frazil_commits_total", "Commits by outcome: landed, found, lost, unknown, failed", "outcome")
SECONDS = counter("frazil_commit_seconds_total", "Seconds spent in commits to tables, retries included")
CONFLICTS = counter("frazil_commit_conflicts_total", "Commits that were retried after another writer's commit")
LOST_REPLIES = counter("frazil_commit_lost_replies_total", "Commits without a response that were found in the table")
MERGED = counter("frazil_manifests_merged_total", "Manifests merged into larger ones by commits")
DISCARDED = counter("frazil_metadata_files_deleted_total", "Metadata files deleted after they became unreferenced")
