"""Looks into CSV files, so that they are found by their columns."""

import csv
import io

from frazil.extract import Item, Unsupported, extractor


@extractor(
    "csv_table",
    version="1",
    types=["text/csv"],
    reads="whole",
    fields={"columns": "names in the first line", "rows": "how many lines follow"},
)
def csv_table(item: Item) -> dict[str, object]:
    """The columns of a CSV file, and how many rows it has."""
    rows = csv.reader(io.StringIO(item.whole().decode("utf-8-sig", "replace")))
    columns = next(rows, None)
    if not columns:
        raise Unsupported("the first line is empty")
    return {"columns": columns, "rows": sum(1 for _ in rows)}
