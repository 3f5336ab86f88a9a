"""The processes of one host: the supervisor that starts and restarts them, what they agree on.

Knows the wire, the errors and the settings of the broker, and nothing else of it.
"""
