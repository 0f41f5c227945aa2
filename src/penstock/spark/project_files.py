"""The files of a declarative pipeline as `penstock pipeline init` writes them.

Names in double brackets are filled in by `penstock.spark.project`.
"""

from __future__ import annotations

from typing import Final

SPEC: Final = """\
# A pipeline of Spark Declarative Pipelines: stream [[stream]] -> tables -> stream [[output]].
name: [[name]]
# Checkpoints. An absolute address, as Spark asks for.
storage: [[home]]/checkpoints
database: default
libraries:
  - glob:
      include: transformations/**
# Only settings that can change while Spark runs, as text; all others are in conf/.
configuration:
  spark.sql.shuffle.partitions: "4"
  spark.sql.session.timeZone: UTC
"""

INGEST: Final = '''\
"""The stream [[stream]] as a streaming table: each run adds what has come since the last one."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

HUB = os.environ.get("PENSTOCK_URL", "[[url]]")

spark = SparkSession.active()


@dp.table(comment="Records of the stream [[stream]]")
def [[table]]() -> DataFrame:
    records = (
        spark.readStream.format("penstock")
        .option("penstock.url", HUB)
        .option("subscribe", "[[stream]]")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "1000000")
        .option("group", "[[name]]")
        .load()
    )
    return records.select(
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("value"),
        F.col("partition"),
        F.col("offset"),
        F.col("timestamp"),
    )
'''

REPORT: Final = '''\
"""A materialized view: computed anew from the table in each run."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.materialized_view(comment="How many records came, by hour")
def [[table]]_by_hour() -> DataFrame:
    hour = F.date_trunc("hour", F.col("timestamp")).alias("hour")
    return (
        spark.read.table("[[table]]")
        .groupBy(hour)
        .agg(
            F.count("*").alias("records"),
            F.sum(F.length("value")).alias("characters"),
        )
    )
'''

PUBLISH: Final = '''\
"""Back to a stream: rows that are new in the table become records of [[output]], each once."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

HUB = os.environ.get("PENSTOCK_URL", "[[url]]")

spark = SparkSession.active()

dp.create_sink("[[sink]]", "penstock", {"penstock.url": HUB, "topic": "[[output]]"})


@dp.append_flow(target="[[sink]]", name="[[sink]]_flow")
def [[sink]]_flow() -> DataFrame:
    row = F.struct("partition", "offset", "timestamp", "value")
    return spark.readStream.table("[[table]]").select("key", F.to_json(row).alias("value"))
'''

DEFAULTS: Final = """\
# What Spark needs to know before it starts. spark-pipelines reads it if SPARK_CONF_DIR names this
# folder. The master is not set here: spark-pipelines --remote 'local[*]' says how many cores.

# Tables are remembered between runs; with Spark's default catalog the second run would fail.
spark.sql.catalogImplementation hive
spark.sql.warehouse.dir [[home]]/tables
spark.hadoop.javax.jdo.option.ConnectionURL jdbc:derby:;databaseName=[[path]]/catalog;create=true
spark.driver.extraJavaOptions -Dderby.stream.error.file=/dev/null

spark.connect.grpc.binding.address 127.0.0.1
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.sql.streaming.checkpointFileManagerClass [[manager]]
"""

DEFAULTS_DELTA: Final = """
# Tables are Delta's. No table names its format itself: the second run would refuse to change it.
spark.sql.sources.default delta
spark.sql.extensions io.delta.sql.DeltaSparkSessionExtension
spark.sql.catalog.spark_catalog org.apache.spark.sql.delta.catalog.DeltaCatalog
spark.jars [[jars]]
"""

LOG4J: Final = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""

IGNORE: Final = """\
/catalog/
/checkpoints/
/tables/
/run.log
__pycache__/
"""

README: Final = """\
# [[name]]

A declarative pipeline on Spark, from a stream of Penstock to tables and back to a stream:

| what | is |
|---|---|
| `[[stream]]` | the stream that is read |
| `[[table]]` | streaming table of its records (`transformations/ingest.py`) |
| `[[table]]_by_hour` | materialized view, how many came by hour (`transformations/report.py`) |
| `[[output]]` | stream to which the table's new rows go (`transformations/publish.py`) |

Tables are [[format]], in `tables/`. `catalog/` remembers them, `checkpoints/` how far they are.

## Run it

With a hub running (`penstock serve`) and both streams there
(`penstock streams create [[stream]]`, `penstock streams create [[output]]`):

    penstock pipeline run . --dry-run
    penstock pipeline run .

Each run takes what has come since the last one, and ends. `penstock groups` shows how far it is,
as group `[[name]]`. Another hub: `--url`, or `PENSTOCK_URL`; a token: `PENSTOCK_TOKEN`.

## Without the penstock command

Spark's own command does the same. It needs three things told by the environment:

    cd [[path]]
    export SPARK_CONF_DIR="$PWD/conf"            # the catalog, the jars, quiet logs
    export PYSPARK_PYTHON="$(command -v python)"   # the Python that Penstock is installed in
    export JAVA_HOME=...                         # if there is no Java 17 or newer on PATH
    spark-pipelines run --remote 'local[*]'

Trust its exit status: a flow that failed may first be reported as COMPLETED.

## What to know

- `--full-refresh-all` builds everything anew from the stream's beginning. All rows then go to
  `[[output]]` once more, because what was sent cannot be called back.
- One such pipeline runs at a time on a machine: Spark's local server uses the fixed port 15002.
- Leave `format=` out of `@dp.table`, settings that cannot change out of `configuration:`, and
  `spark.dataSource.register` out of `transformations/`: each breaks a run.
- Paths in `spark-pipeline.yml` and `conf/` are absolute. If you move the folder, change them.
"""
