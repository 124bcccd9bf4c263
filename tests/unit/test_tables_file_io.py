"""The file system that PyIceberg opens for a location, and with whose credentials."""

from __future__ import annotations

import json
import subprocess
import sys

_LOAD = """
import json, sys
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from frazil.tables.writing.data_files import WriteTarget, load_target
parts = [part.model_dump_json() for part in (Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER)]
for properties in json.loads(sys.argv[1]):
    target = WriteTarget("abfss://c@account.dfs.core.windows.net/t", *parts, "{}", json.dumps(properties))
    print(type(load_target(target).io).__name__)
"""


def test_workers_of_spark_open_azure_as_the_driver_does():
    cases = [{}, {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}]
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, json.dumps(cases)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == ["TableFileIO", "PyArrowFileIO"], done.stderr
