"""`frazil backup …`."""

from __future__ import annotations

from frazil.cli.backup_create import create, run_
from frazil.cli.backup_prune import delete, erase, prune
from frazil.cli.backup_read import diff, list_, show
from frazil.cli.backup_restore import restore, rollback
from frazil.cli.backup_verify import verify
from frazil.cli.invocation import command, new_app

app = new_app(
    "Back up tables with their history, and bring them back under any name, anywhere.",
    example="frazil backup create demo.photos",
)

command(app, example="frazil backup create demo.photos --name before-migration")(create)
command(app, "list", example="frazil backup list demo.photos")(list_)
command(app, example="frazil backup show latest --table demo.photos")(show)
command(app, example="frazil backup diff before-migration latest")(diff)
command(app, example="frazil backup restore latest --to demo.photos_restored --dry-run")(restore)
command(app, example="frazil backup rollback demo.photos")(rollback)
command(app, example="frazil backup verify latest --level checksums")(verify)
command(app, example="frazil backup prune --keep-last 3 --keep-daily 7 --keep-monthly 12 --yes")(prune)
command(app, example="frazil backup delete before-migration --yes")(delete)
command(app, "run", example="frazil backup run nightly --force")(run_)
command(app, example="frazil backup erase latest s3://lake/photos/data/1.parquet --reason 'request 7' --yes")(erase)
