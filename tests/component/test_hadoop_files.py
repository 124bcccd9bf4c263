"""Hadoop's file systems in Spark's JVM, here the local one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from frazil.errors import ConflictError, NotFoundError
from frazil.spark.hadoop import HadoopFiles
from frazil.spark.hadoop_store import HadoopStore
from frazil.storage import parse


@pytest.mark.spark
def test_files_are_listed_measured_read_and_written(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a=1/b c").mkdir(parents=True)
    (tmp_path / "a=1/b c/ü%20;{x}.parquet").write_bytes(b"12345")
    (tmp_path / "x").write_bytes(b"xy\xff\x00")
    root = f"file:{tmp_path}"
    files = HadoopFiles(lambda: spark)
    assert {file.path: file.size for file in files.list(root)} == {
        f"{root}/a=1/b c/ü%20;{{x}}.parquet": 5,
        f"{root}/x": 4,
    }
    assert {file.path: file.size for file in files.list_folder(root)} == {f"{root}/a=1": None, f"{root}/x": 4}
    assert files.list_folder(f"{root}/none") == []
    assert files.size_of(f"{root}/x") == 4
    assert files.size_of(f"{root}/a=1") is None
    assert files.size_of(f"{root}/none") is None
    assert files.read(f"{root}/x") == b"xy\xff\x00"
    with pytest.raises(NotFoundError, match="none"):
        files.read(f"{root}/none")
    with pytest.raises(ConflictError, match="x already exists"):
        files.write(f"{root}/x", b"new", replace=False)
    files.write(f"{root}/once", b"new", replace=False)
    assert (tmp_path / "once").read_bytes() == b"new"
    for data in (b"\x80\xff\x00z", b""):
        files.write(f"{root}/new/y", data)
        assert (tmp_path / "new/y").read_bytes() == data


@pytest.mark.spark
def test_listed_names_are_those_below_the_folder_also_where_hadoop_spells_its_uri_in_another_way(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/a").write_bytes(b"1")
    location = parse(f"file://{tmp_path}")  # Hadoop's spelling has no authority, as that of hdfs:///x gets one
    store = HadoopStore(location, HadoopFiles(lambda: spark))
    assert [info.key for info in store.list()] == ["a/a"]
    assert [info.key for info in store.list("a")] == ["a/a"]
    assert [info.key for info in store.list("a/a")] == []
    assert store.get("a/a") == b"1"
