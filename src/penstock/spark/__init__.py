"""The Spark side: data source, sink and pipelines."""
