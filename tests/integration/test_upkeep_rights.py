"""A table that may be read and not written: every command says so, with its exit code, and has changed nothing."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from frazil.tables.metadata.locations import canonical_uri
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry.verify import verify
from tests.services.kit import Services
from tests.upkeep_files import make, rows
from tests.upkeep_s3 import care_on

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

COMMANDS = (
    ("compact", "--min-files", "2"),
    ("manifests",),
    ("stats",),
    ("expire", "--keep", "1"),
    ("orphans", "--yes"),
    ("partition", "apply", "bucket(2, id)", "--rewrite"),
)


@pytest.fixture(scope="module")
def cares(
    services: Services, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[UpkeepContext, UpkeepContext]]:
    """The same catalog with keys that may do everything, and with keys that may read and list."""
    home: Path = tmp_path_factory.mktemp("rights") / "home"
    name = {"catalog__name": f"r{uuid.uuid4().hex[:8]}"}
    reader = services.seaweedfs.reader
    with (
        care_on(services, home, **name) as owner,
        care_on(services, home, access=reader, spark=spark, **name) as care,
    ):
        make(owner, commits=4)
        yield owner, care


def there(care: UpkeepContext) -> set[str]:
    table = care.load("ns.t")
    return {uri for uri, _ in care.storage_of(table).list(canonical_uri(table.location()))}


def frazil(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    from frazil.__main__ import main

    with pytest.raises(SystemExit) as ended:
        main([*args, "--output", "json"])
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.mark.deep
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_table_that_may_not_be_written_stays_as_it_is(
    cares: tuple[UpkeepContext, UpkeepContext],
    command: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from frazil.upkeep.runs import open_context

    owner, care = cares

    @contextlib.contextmanager
    def opened(*_args: object, **_options: object) -> Iterator[UpkeepContext]:
        yield care

    monkeypatch.setattr(open_context, "open_context", opened)
    before, files = owner.load("ns.t").metadata_location, there(owner)
    # The name of the table follows the name of the command.
    words = 2 if command[0] == "partition" else 1
    code, said = frazil(capsys, "table", *command[:words], "ns.t", *command[words:])
    told = json.loads(said.splitlines()[-1])
    assert (code, told["exit_code"]) == (12, 12), said
    assert told["hint"] and told["message"]
    assert not told["retryable"]
    table = owner.load("ns.t")
    assert table.metadata_location == before
    assert there(owner) == files
    assert verify(owner, table).sound
    assert rows(table) == [1, 2, 3, 4]


def test_it_can_be_looked_at_all_the_same(cares: tuple[UpkeepContext, UpkeepContext]) -> None:
    from frazil.upkeep.plans.health import examine

    _, care = cares
    assert examine(care, "ns.t").files["count"] == 4
    assert verify(care, care.load("ns.t")).sound
