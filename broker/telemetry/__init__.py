"""Clients' own metrics (KIP-714): who is asked for what, and what they pushed. No I/O, no clock.

otlp.py             the numbers in a pushed MetricsData message
subscriptions.py    which metrics a client is asked for, how often
instances.py        the clients that ask and push: when they may, what they get
values.py           the last value of every metric of a client, within bounds
"""
