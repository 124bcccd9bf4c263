"""`DataFrame.mapInArrow` without pandas, which PySpark asks for there and does not use (decision 0021)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, function: ArrowFunction, schema: pa.Schema) -> DataFrame:
    """Applies a function to the rows of each partition, as Arrow batches in and out.

    Args:
        frame: the rows.
        function: is pickled, and called once per partition.
        schema: of the batches that it yields; their columns are taken by place.
    """
    from pyspark.sql import DataFrame as Frame
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(
        function, from_arrow_schema(schema), evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF, name=_name(function)
    )
    columns = udf(*frame.columns)
    made = frame._jdf.mapInArrow(columns._jc, False, None)
    return Frame(made, frame.sparkSession)


def _name(function: ArrowFunction) -> str:
    """As it is called in Spark's plans."""
    return getattr(function, "__name__", type(function).__name__)
