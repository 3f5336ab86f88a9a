"""What the handlers of several APIs share, and the parts of those that are long."""
