"""The router process: it forwards each request to the worker that serves it. See README.md.

Knows the wire, the errors, the settings and the placement of the broker, and nothing else of it.
"""
