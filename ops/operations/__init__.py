"""What can be asked of a broker and done to it: typed results, no printing."""
