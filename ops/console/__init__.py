"""The console: pages about a running broker, served by the HTTP process. Needs the extra of its
name."""
