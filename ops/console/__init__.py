"""The console: pages about a running broker, served by the HTTP process."""
