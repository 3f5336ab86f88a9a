"""The Spark source `moldau`: options, planning on the driver, fetching and decoding in tasks."""
