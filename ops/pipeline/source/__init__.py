"""The Spark source `moldau`: options, offsets, what there is to read, and reading it."""
