"""The perceptual hash to compare with: of a picture on this machine, or of an object whose hash is known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from frazil.content.buckets import bucket_of
from frazil.content.query.filters import DISTANCE, ObjectFilter, Similar
from frazil.content.tables import ContentTables
from frazil.errors import NotFoundError, UsageError, first_line
from frazil.tables.reading.rows import RowScan

if TYPE_CHECKING:
    from pyiceberg.table import Table


def signed(perceptual: str) -> int:
    """A hash as the column has it: its 64 bits as a number with a sign."""
    number = int(perceptual, 16)
    return number - (1 << 64) if number >= 1 << 63 else number


def similar_to(tables: ContentTables, bucket: str | None, picture: str, distance: int | None = None) -> Similar:
    """Returns the condition for pictures that look like another one.

    Args:
        tables: where the hash of an object is looked up.
        bucket: the bucket of that object.
        picture: a file on this machine, or the key of an object.
        distance: bits in which the hashes may differ.

    Raises:
        NotFoundError: there is no such picture.
        UsageError: the file is no picture, or the distance is none.
    """
    bits = DISTANCE if distance is None else distance
    Similar(0, bits)
    file = Path(picture)
    return Similar(hash_of_file(file) if file.is_file() else hash_of_object(tables, bucket, picture), bits)


def hash_of_file(path: Path) -> int:
    """The hash of a picture on this machine.

    Raises:
        UsageError: it is no picture that can be decoded.
    """
    from frazil.content.extraction.sources import FileSource
    from frazil.extract import Limits
    from frazil.extract.engine.item import ObjectItem
    from frazil.extract.engine.source import ObjectRef
    from frazil.extract.images.decode import picture_of
    from frazil.extract.images.perceptual_hash import perceptual_hash
    from frazil.extract.types.detect import media_type

    real = path.resolve()
    wanted = ObjectRef(bucket_of(str(real.parent)), real.name)
    item: Any = ObjectItem(wanted, None, lambda: FileSource(wanted), Limits())
    try:
        item.allow("whole")
        item.detected_type = media_type(item)[0]
        return signed(perceptual_hash(picture_of(item)))
    except Exception as error:  # whatever a decoder says of a file
        raise UsageError(
            f"{path} is no picture that can be compared", cause=first_line(error), hint="a JPEG, PNG, WebP, TIFF or GIF"
        ) from error
    finally:
        item.close()


def hash_of_object(tables: ContentTables, bucket: str | None, key: str) -> int:
    """The hash that the table has of an object.

    Raises:
        NotFoundError: the object is unknown, or has no hash; the message says which.
    """

    def read(table: Table) -> list[tuple[int | None, str | None]]:
        names = [n for n in ("perceptual_hash", "extraction_status") if n in table.schema().column_names]
        found = []
        for rows in RowScan(tables.store, table, ObjectFilter(bucket=bucket, key=key).to_expression(), ["key", *names]):
            found += [(row.get("perceptual_hash"), row.get("extraction_status")) for row in rows.to_pylist()]
        return found

    found = tables.read(tables.objects, read)
    hashes = [number for number, _ in found if number is not None]
    if hashes:
        return hashes[0]
    if found:
        raise NotFoundError(
            f"{key!r} has no perceptual hash",
            cause=f"its extraction is {found[0][1]}" if found[0][1] else "nothing was looked for in it",
            hint="frazil content extract --only picture",
        )
    raise NotFoundError(f"there is no picture {key!r}", hint="a key as frazil content list shows it, or a file here")
