"""`frazil setup`."""

from __future__ import annotations

from typing import Annotated

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run, command, default_command, new_app

app = new_app("Prepare this machine once; afterwards Frazil needs no network.")


@default_command(app, example="frazil setup")
def setup(
    run: Run,
    install_java: Annotated[
        bool, typer.Option(help="install a JDK if that is possible unattended (Debian, as root)")
    ] = True,
) -> None:
    """Find or install a JDK, and download the Spark jars to the cache, verified by checksum."""
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
        run.printer.note("Java 17 or 21 not found; installing it from Debian's packages")
        found = java.install_java()
    jars = fetch_jars(settings.model.cache, found, ivy_settings=spark.ivy_settings, progress=run.printer.note)
    if not archive_file(settings.model.cache, found).is_file():
        run.printer.note("creating a class-data archive of Spark, which halves the start of sessions")
    try:
        make_archive(settings, found)
    except FrazilError as error:  # it only makes sessions quicker
        run.printer.note(f"no archive: {error.message}")
    run.printer.record({"java": f"{found.version} in {found.home}", "jars": len(jars), "cache": settings.model.cache})


@command(app, example="frazil setup bucket s3://document-archive-iceberg-warehouse --dry-run")
def bucket(
    run: Run,
    name: Annotated[
        str | None, typer.Argument(metavar="BUCKET", help="name or s3://name [default: the bucket of the warehouse]")
    ] = None,
    kms_key: Annotated[
        str | None, typer.Option(metavar="ARN", help="encrypt with this KMS key [default: AES256, keys managed by S3]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be done")] = False,
    catalog: CatalogOption = None,
) -> None:
    """Create the bucket of the warehouse with versioning and encryption. If it exists, add what it lacks."""
    from frazil.storage.buckets import inspect_bucket, plan_bucket, prepare_bucket

    settings = run.settings(*CATALOG_SECTIONS)
    chosen = settings.catalog(catalog)
    s3, network = chosen.s3 or settings.model.s3, settings.model.network
    bucket_name = _bucket_name(name or chosen.warehouse or "", is_default=name is None)
    state = inspect_bucket(bucket_name, s3, network)
    steps = plan_bucket(state, kms_key)
    if not dry_run and steps:
        state = prepare_bucket(bucket_name, steps, s3, network, kms_key=kms_key)
    run.printer.record(
        {
            "bucket": f"s3://{bucket_name}",
            "would do" if dry_run else "done": ", ".join(steps) or "nothing to do",
            "versioning": state.versioning,
            "encryption": f"{state.encryption} ({state.kms_key})" if state.kms_key else state.encryption,
        }
    )


def _bucket_name(text: str, *, is_default: bool) -> str:
    from frazil.errors import UsageError
    from frazil.storage import parse

    location = parse(text if "://" in text or text.startswith("/") or is_default else f"s3://{text}") if text else None
    if location is None or location.scheme != "s3":
        where = "the warehouse is" if is_default else f"'{text}' is"
        raise UsageError(f"{where} not an S3 bucket", hint="frazil setup bucket s3://NAME")
    return location.bucket
