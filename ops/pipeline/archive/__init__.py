"""`moldau pipeline archive`: topics into the tables of a lake, exactly once."""
