"""The Spark session, the JDK it runs on and the jars it needs."""

from frazil.spark.session import spark_session

__all__ = ["spark_session"]
