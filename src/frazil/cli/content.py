"""`frazil content …`."""

from __future__ import annotations

from frazil.cli.content_edit import erase, note, tag
from frazil.cli.content_extract import extract
from frazil.cli.content_fields import backfill, fields
from frazil.cli.content_ingest import ingest
from frazil.cli.content_look import reconcile
from frazil.cli.content_read import history, list_, show, stats
from frazil.cli.content_scan import scan
from frazil.cli.content_search import duplicates, export, facets, search
from frazil.cli.content_views import views
from frazil.cli.content_watch import watch
from frazil.cli.invocation import command, new_app

app = new_app(
    "Catalog the objects in buckets and folders: ingest events, scan, list, reconcile.",
    example="frazil content scan ./photos",
)

command(app, example="frazil content ingest events.ndjson")(ingest)
command(app, "list", example="frazil content list ./photos --min-size 1MB --since 7d")(list_)
command(app, example="frazil content show ./photos birds/heron.jpg")(show)
command(app, example="frazil content history ./photos birds/heron.jpg --output json")(history)
command(app, example="frazil content stats ./photos --by prefix --depth 2")(stats)
command(app, example="frazil content search ./photos --label cat --taken 2024")(search)
command(app, example="frazil content facets ./photos --by camera --taken 2024")(facets)
command(app, example="frazil content duplicates ./photos --similar")(duplicates)
command(app, example="frazil content export ./photos cats.csv --label cat")(export)
command(app, example="frazil content views --sql current_objects")(views)
command(app, example="frazil content scan ./photos")(scan)
command(app, example="frazil content extract ./photos --only image,exif")(extract)
command(app, example="frazil content reconcile ./photos --apply")(reconcile)
command(app, example="frazil content watch ./photos --every 1")(watch)
command(app, example="frazil content tag ./photos birds/heron.jpg --add holiday")(tag)
command(app, example='frazil content note ./photos birds/heron.jpg "at the lake" --rating 5')(note)
command(app, example="frazil content erase ./photos birds/heron.jpg --yes")(erase)
command(app, example="frazil content fields --apply")(fields)
command(app, example="frazil content backfill --field iso")(backfill)
