"""The router process forwards each request to the worker that serves it. See README.md.

It imports the wire, the errors, the settings and the placement of the broker, and nothing else.
"""
