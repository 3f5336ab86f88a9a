"""One module for each part of the console: what it asks the broker, and what its pages show."""
