"""One module per API: the fields of its request and response, with their versions."""
