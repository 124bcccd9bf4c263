"""`frazil content …`."""

from __future__ import annotations

from frazil.cli.content_ingest import ingest
from frazil.cli.content_look import reconcile, scan
from frazil.cli.content_read import history, list_, show, stats
from frazil.cli.content_views import views
from frazil.cli.content_watch import watch
from frazil.cli.invocation import command, new_app

app = new_app(
    "Know what is in buckets and folders: take events in, scan, list, reconcile.",
    example="frazil content scan ./photos",
)

command(app, example="frazil content ingest events.ndjson")(ingest)
command(app, "list", example="frazil content list ./photos --min-size 1MB --since 7d")(list_)
command(app, example="frazil content show ./photos birds/heron.jpg")(show)
command(app, example="frazil content history ./photos birds/heron.jpg --output json")(history)
command(app, example="frazil content stats ./photos --by prefix --depth 2")(stats)
command(app, example="frazil content views --sql current_objects")(views)
command(app, example="frazil content scan ./photos")(scan)
command(app, example="frazil content reconcile ./photos --apply")(reconcile)
command(app, example="frazil content watch ./photos --every 1")(watch)
