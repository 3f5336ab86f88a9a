"""The data pipeline on Spark. One room for each thing it does, and what they share beside them.

    source/    the Spark source `moldau`: topics as DataFrames
    lake/      Delta tables in a directory: schemas, commits, compaction, SQL
    archive/   topics into a lake, exactly once
    replay/    records of a lake back into a topic
    report/    a page about the contents of a lake

archive, replay and report stand on lake, and all of them on source. In each, `command.py` is the
action of the command line, the module named after the job runs on Spark's driver, and `task.py` is
what it sends to executors.
"""
