"""What workers and routers count, and the document in which they report it: no I/O."""
