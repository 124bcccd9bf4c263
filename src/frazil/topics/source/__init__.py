"""`spark.read.format("frazil")`: a topic as a Spark data source."""
