"""`frazil replica …`."""

from __future__ import annotations

from frazil.cli.invocation import command, new_app
from frazil.cli.replica_failover import failover
from frazil.cli.replica_look import history, status, verify
from frazil.cli.replica_sync import beacon, plan, run_, sync

app = new_app(
    "Serve tables from a copy of their storage, even when the primary is gone.",
    example="frazil replica status",
)

command(app, example="frazil replica sync prod.orders --replicated-path /dr/warehouse --warehouse /srv/replica")(sync)
command(app, example="frazil replica plan sales.orders --replicated-path s3://dr-bucket/warehouse")(plan)
command(app, example="frazil replica status")(status)
command(app, example="frazil replica history sales.orders --limit 10")(history)
command(app, example="frazil replica verify sales.orders")(verify)
command(app, example="frazil replica failover sales.orders --primary production")(failover)
command(app, example="frazil replica beacon s3://prod/warehouse")(beacon)
command(app, "run", example="frazil replica run")(run_)
