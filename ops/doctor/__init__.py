"""`moldau doctor`: looks at a machine and a configuration, before a broker runs there or while."""
