"""A relocated table holds the same rows in every snapshot, branch and tag, whoever wrote it and whoever reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.relocation_driver import find_mentions, prefixes_to, relocate_table
from tests.relocation_tables import Zoo, read_all, species

pytestmark = pytest.mark.spark
SLOW = sorted(set(species(slow=True)) - set(species()))


@pytest.mark.parametrize("name", species())
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
    moved = relocate_table(table.metadata_location, prefixes_to(table, str(target)))
    assert find_mentions(target, str(zoo.home)) == []
    with zoo.moved_away(name), zoo.registered(moved) as identifier:
        for engine, original in originals.items():
            assert read_all(engine, zoo.spark, identifier, moved) == original, engine
