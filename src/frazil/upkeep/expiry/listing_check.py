"""Checks that a listing of a table's folder shows the table. Where it does not, no file in it can be told an orphan.

A location may be written in a way that leads elsewhere, linked, mounted twice or renamed by case: then the listing has
names that the table's metadata does not have, and every file looks like an orphan.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from typing import TYPE_CHECKING
from unicodedata import normalize

from frazil.errors import NotAllowedError
from frazil.tables.metadata.locations import TableStorage, canonical_folder, canonical_uri, is_inside
from frazil.upkeep.expiry.foreign_metadata import is_gone

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from frazil.tables.metadata.reachable import Files


def require_shown(places: TableStorage, table: Table, before: Files, after: Files, found: Container[str]) -> None:
    """Requires that a listing has the table's current metadata, and every file of the table below its location.

    Args:
        places: of the table.
        table: as it was when the listing began.
        before: the files that it referred to then.
        after: the files that it refers to since the listing has ended.
        found: the listing, by canonical URIs.

    Raises:
        NotAllowedError: a file is missing there.
    """
    own, current = canonical_folder(table.location()), canonical_uri(table.metadata_location)
    needed = [uri for uri in before if uri in after and is_inside(uri, own)]
    absent = [uri for uri in dict.fromkeys([current, *needed]) if uri not in found]
    # Former metadata may have been deleted by a commit, or long ago; what was current, only if it no longer is.
    absent = [
        uri
        for uri in absent
        if before[uri].kind != "metadata" or (uri == current and uri in after) or not is_gone(places, uri)
    ]
    if not absent:
        return
    what = "its current metadata" if current in absent else f"{len(absent)} of its files"
    raise NotAllowedError(
        f"nothing is deleted of {_name(table)}: the listing of {own} does not show {what}",
        cause=f"the table refers to {before[absent[0]].uri}",
        hint=f"frazil table verify {_name(table)}; if that finds all files, the table's location and its metadata name "
        "the same folder in two ways (a mount, a link, upper and lower case): use one of them",
    )


def require_no_alias(table: Table, orphans: Iterable[str], referenced: Collection[str], found: Container[str]) -> None:
    """Requires that no orphan has the name of a file that the table has outside of the listing: it may be that file.

    Raises:
        NotAllowedError: one has.
    """
    outside = {_file_name(uri): uri for uri in referenced if uri not in found}
    for orphan in orphans if outside else ():
        if (other := outside.get(_file_name(orphan))) is not None:
            raise NotAllowedError(
                f"nothing is deleted of {_name(table)}: {orphan} may be a file of it under another name",
                cause=f"the table refers to {other}",
                hint="if both are one file (a mount, a second bucket name), write the table's location and its "
                "write.data.path in the same way; if they are not, move the file out of the table's folder",
            )


def require_same_place(table: Table, place: str) -> None:
    """Requires that a table's location still leads to the folder that was listed.

    Raises:
        NotAllowedError: it was moved, or a link was changed.
    """
    if (now := canonical_folder(table.location())) != place:
        raise NotAllowedError(
            f"nothing more is deleted of {_name(table)}: its folder was moved since the search",
            cause=f"{place} was searched, and the table lies in {now}",
            hint=f"search again: frazil table orphans {_name(table)}",
        )


def _file_name(uri: str) -> str:
    return normalize("NFC", uri.rpartition("/")[2]).casefold()


def _name(table: Table) -> str:
    return ".".join(table.name())
