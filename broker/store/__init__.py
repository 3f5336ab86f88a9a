"""Redis: the only package that knows it."""
