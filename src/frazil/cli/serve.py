"""`frazil serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.cli.invocation import CATALOG_SECTIONS, Run, command, new_app

if TYPE_CHECKING:
    from frazil.api.server import Served

app = new_app("Run the broker, which owns and serves the log.")


@command(app, example="frazil serve --set serve.http_port=8080")
def serve(run: Run) -> None:
    """Serve the log over Arrow Flight and HTTP until SIGTERM or Ctrl-C. Prints its addresses when ready."""
    from frazil.api.origin_check import is_loopback
    from frazil.api.server import run_server

    settings = run.settings("log", "serve", "topics", *CATALOG_SECTIONS)
    host = settings.model.serve.host
    if not is_loopback(host):
        run.printer.note(
            f"warning: serve.host is {host}: anyone who can reach this address can publish, read and delete; there is "
            f"no authentication yet"
        )

    def ready(served: Served) -> None:
        if run.printer.json_output:
            run.printer.json(served.to_dict())
        else:
            print(f"serving {served.log}: HTTP at {served.http}, Arrow Flight at {served.flight}")
        print(end="", flush=True)

    run_server(settings, ready)
    run.printer.note("stopped; all messages are on disk")
