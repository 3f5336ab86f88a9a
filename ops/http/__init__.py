"""The HTTP process: metrics, health, and the console."""
