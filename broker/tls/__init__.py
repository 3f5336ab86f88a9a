"""TLS on the listeners of workers and routers: contexts, certificates that change, handshakes."""
