"""What is left of a write that Hadoop's file system refuses."""

from __future__ import annotations

import gc
from contextlib import suppress
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JNetworkError

from frazil.errors import UnavailableError
from frazil.spark.hadoop import HadoopFiles
from frazil.tables.hadoop import _Handler


@pytest.fixture
def jvm() -> MagicMock:
    return MagicMock()


@pytest.fixture
def files(jvm: MagicMock) -> HadoopFiles:
    return HadoopFiles(lambda: MagicMock(_jvm=jvm))


@pytest.mark.parametrize("step", ["write", "hsync", "close"])
def test_a_failed_write_leaves_no_temporary_file(step, jvm, files):
    system = jvm.org.apache.hadoop.fs.Path.return_value.getFileSystem.return_value
    getattr(system.create.return_value, step).side_effect = RuntimeError("disk full")
    with pytest.raises(RuntimeError, match="disk full"):
        files.write("hdfs:///x", b"1")
    system.delete.assert_called_once_with(system.create.call_args.args[0], False)
    assert str(jvm.org.apache.hadoop.fs.Path.call_args.args[0]).endswith("._COPYING_")


def test_a_failed_write_is_not_repeated_when_its_stream_is_collected():
    files = MagicMock()
    files.write.side_effect = OSError  # not an instance: its traceback would hold the stream
    stream = _Handler(files).open_output_stream("hdfs:///x", {})
    stream.write(b"1")
    with suppress(OSError):  # pytest.raises would hold it too
        stream.close()
    del stream
    gc.collect()
    assert files.write.call_count == 1


@pytest.mark.parametrize("error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError("no")])
def test_an_ended_jvm_is_reported_as_unavailable(error, jvm, files):
    jvm.org.apache.hadoop.fs.Path.side_effect = error
    with pytest.raises(UnavailableError, match="hdfs:///x"):
        files.read("hdfs:///x")
