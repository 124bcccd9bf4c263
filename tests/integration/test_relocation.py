"""A relocated table holds the same rows in every snapshot, branch and tag, whoever wrote it and whoever reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.tables.relocation.prefixes import PrefixMap
from tests.relocation_driver import describe_files, find_mentions, prefixes_to, relocate_table
from tests.relocation_tables import Zoo, read_all, species

pytestmark = pytest.mark.spark
SLOW = sorted(set(species(slow=True)) - set(species()))


#: Each hard case once; the tables of `test_backup_restore.FIRST` are relocated by restores.
FIRST = ("spark_orc", "partition_evolution", "mixed_spellings", "duckdb_v3", "equality_deletes_partitioned")


@pytest.mark.deep
@pytest.mark.parametrize(
    "name", [name if name in FIRST else pytest.param(name, marks=pytest.mark.deep) for name in species()]
)
def test_a_relocated_table_reads_as_the_original(zoo: Zoo, name: str, tmp_path: Path) -> None:
    check_relocated(zoo, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_further_kinds_of_deletes_are_relocated(zoo: Zoo, name: str, tmp_path: Path) -> None:
    check_relocated(zoo, name, tmp_path)


def check_relocated(zoo: Zoo, name: str, folder: Path) -> None:
    """Relocates a table, takes the original away, and compares what each engine reads."""
    table = zoo.table(name)
    originals = {engine: zoo.read_original(engine, name) for engine in table.engines}
    target = folder / "copy of the table"
    prefixes = prefixes_to(table, str(target))
    moved = relocate_table(table.metadata_location, prefixes)
    assert describe_files(moved) == describe_files(table.metadata_location, prefixes)
    assert find_mentions(target, str(zoo.home)) == []
    with zoo.moved_away(name), zoo.registered(moved) as identifier:
        for engine, original in originals.items():
            assert read_all(engine, zoo.spark, identifier, moved) == original, engine


def test_each_time_leads_to_the_same_rows(zoo: Zoo, tmp_path: Path) -> None:
    """Also after a rollback, and with snapshots that were never current."""
    table = zoo.table("spark_v2")
    original = read_all("spark", zoo.spark, table.identifier, table.metadata_location, times=True)
    assert sum(str(key).startswith("at ") for key in original) == 6
    moved = relocate_table(table.metadata_location, prefixes_to(table, str(tmp_path / "copy")))
    with zoo.moved_away("spark_v2"), zoo.registered(moved) as identifier:
        assert read_all("spark", zoo.spark, identifier, moved, times=True) == original


@pytest.mark.deep
@pytest.mark.parametrize("name", ["spark_v1", "spark_v2", "spark_v3", "schema_evolution", "gzipped_metadata"])
def test_files_equal_those_of_icebergs_own_procedure_where_that_is_right(zoo: Zoo, name: str, tmp_path: Path) -> None:
    table = zoo.table(name)
    target = f"file:{tmp_path}/copy"
    staged = zoo.rewrite_table_path(name, target, tmp_path / "staging")
    moved = relocate_table(table.metadata_location, PrefixMap([(table.location, target)]))
    theirs = describe_files(moved, find=staged.__getitem__)
    assert describe_files(moved) == theirs
    assert len(theirs) > 1
