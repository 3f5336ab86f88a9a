"""Sockets of workers and routers: accepting, descriptors, peers, memory of half-sent requests."""
