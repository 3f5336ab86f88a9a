"""The data pipeline on Spark: the source `moldau`, and the archive of topics in a lake."""
