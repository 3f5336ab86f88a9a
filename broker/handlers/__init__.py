"""One module per API: a message in, a message out."""
