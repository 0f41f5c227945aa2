"""Downloads jars with Spark's resolver: `python -m penstock.spark.resolve FOLDER COORDINATES...`

A program of its own, started by `penstock.spark.jars`: the resolver lives in a Java process, and
the caller's may not be there, or be busy. Prints the coordinates of each jar that is in
FOLDER/jars, in the order given, and ends at the first that cannot be had.
"""

from __future__ import annotations

import sys

from penstock.errors import PenstockError
from penstock.spark.session import spark_session


def main(folder: str, *wanted: str) -> None:
    """Fetch one after the other."""
    spark = spark_session("penstock-jars", master="local[1]", conf={"spark.jars.ivy": folder})
    for coordinates in wanted:
        spark.sql(f"ADD JAR ivy://{coordinates}?transitive=false")
        sys.stdout.write(f"{coordinates}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except PenstockError as error:
        sys.exit(str(error))
