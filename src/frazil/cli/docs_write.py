"""`frazil docs put|update|delete|undelete`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from frazil.cli.docs_session import (
    DocumentId,
    IdempotencyKey,
    IfMatch,
    JsonSource,
    SetFields,
    Tags,
    opened_store,
    print_document,
    read_object,
    split_settings,
    tags_of,
    typed_fields,
)
from frazil.cli.invocation import Run
from frazil.errors import UsageError

Ids = Annotated[list[str], typer.Argument(metavar="ID…", help="ids of documents")]


def put(
    run: Run,
    document_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="its id [default: a new UUIDv7]")] = None,
    json: JsonSource = None,
    filename: Annotated[str | None, typer.Option(metavar="NAME", help="its name")] = None,
    size: Annotated[str | None, typer.Option(metavar="SIZE", help="its size, such as 2481 or 12MB")] = None,
    content_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="such as application/pdf")] = None,
    storage_tier: Annotated[
        str | None, typer.Option("--storage-tier", metavar="TIER", help="standard, infrequent, archive, deep_archive")
    ] = None,
    provider: Annotated[str | None, typer.Option(metavar="NAME", help="who stores the object, such as aws")] = None,
    bucket: Annotated[str | None, typer.Option(metavar="NAME", help="in which bucket it lies")] = None,
    object_key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="under which key")] = None,
    created_at: Annotated[str | None, typer.Option(metavar="TIME", help="when it was created [default: now]")] = None,
    set_: SetFields = None,
    tag: Tags = None,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Create a document, or replace all its metadata. Fields come from options, JSON, or both: options win.

    --if-match 0 only creates. To change single fields: frazil docs update
    """
    from frazil.cli.amounts import size as parse_size

    run, fields = split_settings(run, set_)
    request = {} if json is None else read_object(json)
    options: dict[str, Any] = {
        "document_id": document_id, "filename": filename, "content_type": content_type, "storage_tier": storage_tier,
        "provider": provider, "bucket": bucket, "object_key": object_key, "created_at": created_at,
        "size_bytes": None if size is None else parse_size(size),
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    with opened_store(run) as store:
        request |= typed_fields(fields, store.columns() if fields else {}) | given
        if tag:
            request["tags"] = {**_mapping(request.get("tags")), **tags_of(tag)}
        made = store.put_metadata(request, if_match=if_match, idempotency_key=idempotency_key)
    print_document(run, made)


def update(
    run: Run,
    document_id: DocumentId,
    set_: SetFields = None,
    tag: Tags = None,
    untag: Annotated[
        list[str] | None, typer.Option("--untag", metavar="NAME", help="remove this tag; may be repeated")
    ] = None,
    json: JsonSource = None,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> None:
    """Change fields of a document. Tags and attributes are merged: those that are not named stay.

    Of fields without a value the stored one is removed: --set checksum=
    """
    run, fields = split_settings(run, set_)
    changes = {} if json is None else read_object(json)
    tags: dict[str, str | None] = {**tags_of(tag), **dict.fromkeys(untag or ())}
    if not changes and not fields and not tags:
        raise UsageError("no change is given", hint="--set FIELD=VALUE, --tag NAME=VALUE, --untag NAME or --json FILE")
    with opened_store(run) as store:
        changes |= typed_fields(fields, store.columns() if fields else {})
        if tags:
            changes["tags"] = {**_mapping(changes.get("tags")), **tags}
        made = store.update_metadata(document_id, changes, if_match=if_match, idempotency_key=idempotency_key)
    print_document(run, made)


def delete(run: Run, ids: Ids, if_match: IfMatch = None, idempotency_key: IdempotencyKey = None) -> None:
    """Delete documents, all or none. Their history stays, and undelete brings them back. Files are not touched."""
    _apply(run, "delete", ids, if_match, idempotency_key)


def undelete(run: Run, ids: Ids, if_match: IfMatch = None, idempotency_key: IdempotencyKey = None) -> None:
    """Bring deleted documents back, all or none, with the metadata that they had."""
    _apply(run, "undelete", ids, if_match, idempotency_key)


def _apply(run: Run, operation: Any, ids: list[str], if_match: int | None, idempotency_key: str | None) -> None:
    from frazil.documents.store import Write

    if len(ids) > 1 and (if_match is not None or idempotency_key is not None):
        option = "--if-match" if if_match is not None else "--idempotency-key"
        raise UsageError(f"{option} is for one document, and {len(ids)} are given", hint="one ID")
    with opened_store(run) as store:
        made = store.write([Write(operation, each, {}, if_match, idempotency_key) for each in ids])
    if run.printer.json_output:
        run.printer.json([{"document_id": r.document_id, "revision": r.revision, "operation": operation} for r in made])
        return
    for revision in made:
        print(f"{revision.document_id}: {operation}d, revision {revision.revision}")


def _mapping(value: Any) -> dict[str, Any]:
    """Tags of JSON; what is no object is left to the check of the request."""
    return dict(value) if isinstance(value, dict) else {}
