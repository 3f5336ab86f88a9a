"""One module for each part of the console: its questions to the broker, and its pages."""
