"""Writers for tests of concurrent commits; each runs in a process of its own.

    python -m tests.writers pyiceberg HOME TABLE FIRST COUNT
    python -m tests.writers spark HOME TABLE FIRST COUNT

Each commits COUNT times one row, with the ids FIRST, FIRST+1, …, and prints an id when its commit is done. A conflict
that the engine gives up on is tried again by the writer, as a client would.
"""

from __future__ import annotations

import sys

from frazil.catalogs import open_catalog, translated
from frazil.errors import ConflictError
from frazil.settings import load_settings
from frazil.spark import spark_session
from tests.lane import people
from tests.machine import machine_flags


def main() -> None:
    engine, home, table, first, count = sys.argv[1:]
    settings = load_settings(flags={**machine_flags(), "home": home, "spark.master": "local[1]"}, environ={})
    ids = range(int(first), int(first) + int(count))
    {"pyiceberg": with_pyiceberg, "spark": with_spark}[engine](settings, table, ids)


def with_pyiceberg(settings, table: str, ids: range) -> None:
    chosen = settings.catalog()
    mine = open_catalog(chosen).load_table(table)
    for i in ids:
        while True:
            try:
                with translated(chosen):
                    mine.append(people(i))
                break
            except ConflictError:
                mine.refresh()
        print(i, flush=True)


def with_spark(settings, table: str, ids: range) -> None:
    from py4j.protocol import Py4JJavaError

    with spark_session(settings) as spark:
        for i in ids:
            while True:
                try:
                    spark.sql(f"INSERT INTO {table} VALUES ({i}, 'person {i}')")
                    break
                except Py4JJavaError as error:
                    if "CommitFailedException" not in str(error):
                        raise
            print(i, flush=True)


if __name__ == "__main__":
    main()
