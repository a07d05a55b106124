"""Busway in Spark: a source and a sink by the name `busway`, and the jobs of the lake.

Spark finds the source by itself, through the module `pyspark_busway`; nothing has to be registered. Needs `busway[spark]`.
"""

from busway.spark.java import NeedsJava
from busway.spark.session import NeedsSpark, session

__all__ = ["NeedsJava", "NeedsSpark", "session"]
