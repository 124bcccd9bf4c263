"""`frazil docs …`."""

from __future__ import annotations

from frazil.cli import docs_files, docs_schema
from frazil.cli.docs_migrate import migrate, verify
from frazil.cli.docs_read import get, history, list_, stats
from frazil.cli.docs_transfer import export, import_
from frazil.cli.docs_write import delete, put, undelete, update
from frazil.cli.invocation import command, new_app

app = new_app(
    "Keep the metadata of documents, on any store, with every moment of its past.",
    example="frazil docs put --filename report.pdf --storage-tier archive",
)

command(app, example="frazil docs put --filename report.pdf --size 2MB --tag project=apollo")(put)
command(app, example="frazil docs get abc123 --as-of 1h")(get)
command(app, "list", example="frazil docs list --storage-tier archive --start-date 2024-01-01 --tag project")(list_)
command(app, example="frazil docs update abc123 --set storage_tier=archive --tag project=apollo --if-match 3")(update)
command(app, example="frazil docs delete abc123 --if-match 3")(delete)
command(app, example="frazil docs undelete abc123")(undelete)
command(app, example="frazil docs history abc123")(history)
command(app, example="frazil docs stats --as-of 2026-01-31T12:00:00Z")(stats)
command(app, "import", example="frazil docs import documents.csv --skip-bad bad.ndjson")(import_)
command(app, example="frazil docs export archive.parquet --storage-tier archive")(export)
command(app, example="frazil docs migrate --from sqlite --to iceberg --dry-run")(migrate)
command(app, example="frazil docs verify")(verify)
docs_files.register(app)
app.add_typer(docs_schema.app, name="schema")
