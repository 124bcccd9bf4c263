"""`frazil content search|facets|duplicates|export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.content_read import tables_of, with_lag
from frazil.cli.invocation import CatalogOption, Run
from frazil.cli.printing import visible
from frazil.cli.search_options import Wanted, searching
from frazil.errors import UsageError

if TYPE_CHECKING:
    from frazil.content.query.export import Format

Place = Annotated[str | None, typer.Argument(metavar="[PLACE]", help="only this bucket or folder")]
Distance = Annotated[int | None, typer.Option(min=0, max=64, help="bits of 64 in which pictures may differ")]


class SortChoice(StrEnum):
    key = "key"
    size = "size"
    modified = "modified"
    taken = "taken"
    distance = "distance"
    rating = "rating"


class FormatChoice(StrEnum):
    csv = "csv"
    ndjson = "ndjson"
    parquet = "parquet"


@searching
def search(
    run: Run,
    wanted: Wanted,
    place: Place = None,
    similar: Annotated[
        str | None, typer.Option(metavar="FILE|KEY", help="looks like this picture: a file here, or an object")
    ] = None,
    distance: Distance = None,
    sort: Annotated[
        SortChoice | None,
        typer.Option(help="the largest, newest, best rated or nearest first [default: distance, or key]"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="at most this many")] = 100,
    after: Annotated[str | None, typer.Option(metavar="TOKEN", help="go on behind the page that has said this")] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B,…", help="show these columns")] = None,
    open_: Annotated[bool, typer.Option("--open", help="open what was found, up to 20 files of a folder here")] = False,
    catalog: CatalogOption = None,
) -> None:
    """Find objects by what is in them: labels, EXIF, place, time, tags, words, or a picture they look like."""
    from frazil.content.query.search import find

    names = None if columns is None else [name.strip() for name in columns.split(",") if name.strip()]
    with tables_of(run, catalog) as tables:
        asked = wanted.search(tables, similar=similar, distance=distance)
        page = find(
            tables, asked, sort=sort.value if sort else None, limit=limit, after=after, columns=names
        )  # fmt: skip
    if run.printer.json_output:
        run.printer.json(with_lag(tables, {"objects": page.rows, "after": page.after}))
    else:
        _print_hits(run, page.rows, with_bucket=place is None, names=names)
    if page.after is not None:
        run.printer.note(f"there are more: these are the first {limit} (--limit, or --after {page.after})")
    if open_:
        from frazil.cli.opening import open_files

        open_files(run, page.rows)


@searching
def facets(
    run: Run,
    wanted: Wanted,
    by: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help="camera, label, year, month, type, tag, language, author, place (whole degrees), rating, status, "
            "extension, or a column",
        ),
    ],
    place: Place = None,
    limit: Annotated[int, typer.Option(min=1, help="at most this many groups, those with most objects")] = 100,
    catalog: CatalogOption = None,
) -> None:
    """Count what a search finds: objects and bytes by camera, label, year or any column."""
    from frazil.content.query.facets import facets as counted

    with tables_of(run, catalog) as tables:
        found = counted(tables, wanted.search(tables), by, limit)
    if run.printer.json_output:
        run.printer.json(with_lag(tables, {"by": by, "groups": found.groups, "more": found.more}))
        return
    rows = [[_text(g["value"]), g["objects"], _size(g["bytes"])] for g in found.groups]
    run.printer.rows([by, "objects", "bytes"], rows, none="no objects")
    if found.more:
        run.printer.note(f"there are more: these are the {limit} groups with most objects (--limit)")


@searching
def duplicates(
    run: Run,
    wanted: Wanted,
    place: Place = None,
    similar: Annotated[
        bool, typer.Option("--similar", help="pictures that look alike, not only the same bytes")
    ] = False,
    distance: Distance = None,
    limit: Annotated[int, typer.Option(min=1, help="at most this many groups, those that waste most")] = 100,
    catalog: CatalogOption = None,
) -> None:
    """Show what is there more than once, and the bytes that this wastes. Nothing is deleted."""
    from frazil.content.query.duplicates import duplicates as same
    from frazil.content.query.similarity import DISTANCE, similar_groups

    if distance is not None and not similar:
        raise UsageError("a distance is about pictures that look alike", hint="--similar --distance 4")
    with tables_of(run, catalog) as tables:
        asked = wanted.search(tables)
        if similar:
            found = similar_groups(tables, asked, DISTANCE if distance is None else distance, limit)
        else:
            found = same(tables, asked, limit)
    if run.printer.json_output:
        run.printer.json(with_lag(tables, found.to_dict()))
        return
    rows = [
        [number, _size(member["size"]), _text(member["bucket"]) if place is None else "", _text(member["key"])]
        for number, group in enumerate(found.groups, 1)
        for member in group["members"]
    ]
    shown = [0, 1, 2, 3] if place is None else [0, 1, 3]
    heads = ["group", "size", "bucket", "key"]
    run.printer.rows([heads[i] for i in shown], [[row[i] for i in shown] for row in rows], none="no duplicates")
    if found.groups:
        run.printer.note(
            f"{found.count:,} groups, {found.objects:,} objects more than needed: {_size(found.wasted_bytes)} wasted"
        )
    if found.more:
        run.printer.note(
            f"only {'the group that wastes' if limit == 1 else f'the {limit} groups that waste'} most (--limit)"
        )


@searching
def export(
    run: Run,
    wanted: Wanted,
    places: Annotated[
        list[str],
        typer.Argument(metavar="[PLACE] FILE", help="a bucket or folder, and where to write; - is standard output"),
    ],
    form: Annotated[FormatChoice | None, typer.Option("--format", help="[default: by the name of the file]")] = None,
    force: Annotated[bool, typer.Option("--force", help="replace a file that is there")] = False,
    catalog: CatalogOption = None,
) -> None:
    """Write what a search finds to a file, with all columns: CSV, NDJSON or Parquet."""
    from dataclasses import replace

    from frazil.cli.results import check_output, written_file
    from frazil.content.buckets import bucket_of
    from frazil.content.query.export import export as write

    if len(places) > 2:
        raise UsageError(f"{places[2]!r} is one name too many", hint="frazil content export [PLACE] FILE")
    *of, name = places
    wanted = replace(wanted, bucket=bucket_of(of[0]) if of else None)
    chosen = _format(form, name)
    out = None if name == "-" else Path(name)
    if out is not None and out.is_file() and not force:
        raise UsageError(f"{out} is there already", hint="--force to replace it, or another name")
    check_output(chosen, out)
    with tables_of(run, catalog) as tables:
        asked = wanted.search(tables)
        with written_file(out) as file:
            count = write(tables, asked, file, chosen)
    if run.printer.json_output and out is not None:
        run.printer.json(with_lag(tables, {"file": str(out), "format": chosen, "objects": count}))
    else:
        run.printer.note(f"{count:,} objects written{'' if out is None else f' to {out}'}")


def _format(form: FormatChoice | None, name: str) -> Format:
    if form is not None:
        return form.value
    endings: dict[str, Format] = {".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet"}
    found = endings.get(Path(name).suffix.lower())
    if found is None:
        raise UsageError(f"{name!r} does not tell the format", hint="--format csv, ndjson or parquet")
    return found


# -- for people --------------------------------------------------------------------------------------------------------


def _print_hits(run: Run, rows: Sequence[Mapping[str, Any]], *, with_bucket: bool, names: Sequence[str] | None) -> None:
    """The columns that somebody named; else the usual ones that have a value."""
    usual = [
        "key",
        "size",
        "taken_at",
        "camera",
        "labels",
        "user_tags",
        "rating",
        "title",
        "distance_bits",
        "distance_km",
    ]
    columns = usual if names is None else [*dict.fromkeys(["key", *names]), "distance_bits", "distance_km"]
    if names is None or not any(n not in ("key", "bucket") for n in names):
        columns = [name for name in columns if name in ("key", "size") or any(row.get(name) for row in rows)]
    else:
        columns = [name for name in columns if any(name in row for row in rows)]
    columns = ["bucket", *columns] if with_bucket and "bucket" not in columns else columns
    titles = {"taken_at": "taken", "user_tags": "tags", "distance_bits": "bits", "distance_km": "km"}
    listed = [[_shown(name, row.get(name), names is None) for name in columns] for row in rows]
    run.printer.rows([titles.get(name, name) for name in columns], listed, none="nothing found")


def _shown(name: str, value: Any, short: bool) -> Any:
    if name == "size":
        return _size(value)
    if name == "distance_km" and value is not None:
        return f"{value:.3f}"
    if isinstance(value, list):
        texts = [str(_text(v)) for v in value]
        return ", ".join(texts[:3]) + (", …" if short and len(texts) > 3 else "") if short else ", ".join(texts)
    if isinstance(value, Mapping):
        return ", ".join(f"{_text(k)}={_text(v)}" for k, v in value.items())
    if hasattr(value, "isoformat"):
        return value.isoformat(sep=" ", timespec="seconds") if hasattr(value, "hour") else value.isoformat()
    return _text(value)


def _text(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def _size(value: int | None) -> str | None:
    from frazil.cli.amounts import shown_size

    return None if value is None else shown_size(value)
