"""`frazil setup`."""

from __future__ import annotations

from typing import Annotated

import typer

from frazil.cli.invocation import Run, command, new_app

app = new_app("Prepare this machine, once; afterwards no network is needed.")


@command(app, example="frazil setup")
def setup(
    run: Run,
    install_java: Annotated[
        bool, typer.Option(help="install a JDK where that needs no questions (Debian, root)")
    ] = True,
) -> None:
    """Find a JDK (or install one), and bring the Spark jars into the cache, each checked against its checksum."""
    from frazil.errors import FrazilError, SetupError
    from frazil.spark import java
    from frazil.spark.archive import archive_file, make_archive
    from frazil.spark.jars import fetch_jars

    settings = run.settings()
    spark = settings.model.spark
    try:
        found = java.find_java(spark.java_home)
    except SetupError:
        if not (install_java and spark.java_home is None and java.can_install_java()):
            raise
        run.printer.note("no Java 17 or 21 here; installing one from Debian's packages")
        found = java.install_java()
    jars = fetch_jars(settings.model.cache, found, ivy_settings=spark.ivy_settings, progress=run.printer.note)
    if not archive_file(settings.model.cache, found).is_file():
        run.printer.note("recording an archive of Spark's classes, so that sessions start in half the time")
    try:
        make_archive(settings, found)
    except FrazilError as error:  # it only makes sessions quicker
        run.printer.note(f"no archive: {error.message}")
    run.printer.record({"java": f"{found.version} in {found.home}", "jars": len(jars), "cache": settings.model.cache})
