"""`frazil up`."""

from __future__ import annotations

import sys

from frazil.cli.invocation import CATALOG_SECTIONS, Run, command, new_app

app = new_app("Run the broker and the pipeline together.")


@command(app, example="frazil up --set serve.http_port=8080")
def up(run: Run) -> None:
    """Run `serve` and `pipeline` together. They are restarted if they exit, and one Ctrl-C stops both in order.

    It reports that it is up once the pipeline has checked every topic. Their output goes to standard error; each line
    begins with the name of the process.
    """
    import asyncio

    from frazil.log.owner import read_owner
    from frazil.supervise.supervisor import Command, Supervisor
    from frazil.topics.connection import log_folder

    settings = run.settings("log", "serve", "topics", "pipeline", "spark", *CATALOG_SECTIONS)
    folder = log_folder(settings)
    served: dict[str, str] = {}

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def serve_is_ready() -> bool:
        owner = read_owner(folder)
        if owner is None or "http" not in owner.addresses:  # a pipeline that has the log hands it over first
            return False
        served.update(owner.addresses)
        return True

    def ready() -> None:
        if run.printer.json_output:
            run.printer.json({"log": str(folder), **served, "pipeline": "ready"})
        else:
            print(
                f"up: HTTP at {served['http']}, Arrow Flight at {served['flight']}, and the pipeline is ready;"
                " press Ctrl-C to stop"
            )
        print(end="", flush=True)

    commands = [
        Command("serve", lambda: ["serve", *_options(run, _same_ports(served))], serve_is_ready, patience=30),
        # The pipeline must never take the log itself while serve is on its way back.
        Command("pipeline", lambda: ["pipeline", *_options(run, {"log.broker": served["flight"]})], lambda: True, 90),
    ]

    async def supervise() -> None:
        await Supervisor(commands, say).run(ready)

    asyncio.run(supervise())


def _options(run: Run, settings: dict[str, str]) -> list[str]:
    """The common options of this run, for a child that has some settings of its own."""
    kept = [one for one in run.set_ if one.partition("=")[0].strip() not in settings]
    chosen = [*kept, *(f"{key}={value}" for key, value in settings.items())]
    config = [] if run.config is None else ["--config", str(run.config)]
    return [*config, *(word for one in chosen for word in ("--set", one)), *(["--verbose"] if run.verbose else [])]


def _same_ports(served: dict[str, str]) -> dict[str, str]:
    """A server that starts again takes the ports that its clients know."""
    return {f"serve.{kind}_port": address.rpartition(":")[2] for kind, address in served.items()}
