"""Lets Spark find the format "penstock" by itself: it looks for packages named `pyspark_...`.

Spark imports all of them unguarded, so a failing import here would break every other source too:
this package imports one name and does nothing else.
"""

from penstock.spark.source import DefaultSource

__all__ = ["DefaultSource"]
