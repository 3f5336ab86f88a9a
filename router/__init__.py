"""The router process: where a request goes, the connections to the workers, one answer of several.

Knows the wire, the errors and the settings of the broker, and nothing else of it.
"""
