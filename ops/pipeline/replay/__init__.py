"""`moldau pipeline replay`: records of a lake back into a topic."""
