"""Metrics that clients push (KIP-714): which clients are asked for which, and their values. There
is no I/O and no clock here.

    otlp.py             the numbers in a pushed MetricsData message
    subscriptions.py    which metrics a client is asked for, how often
    instances.py        the clients that ask and push: when they may, and their answers
    values.py           the last value of every metric of a client, within bounds
"""
