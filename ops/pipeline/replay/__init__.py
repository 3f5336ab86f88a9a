"""`moldau pipeline replay`: records of a lake back into a topic, each once and in order."""
