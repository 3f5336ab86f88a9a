"""Writes the source of encoders and decoders from declared fields, and compiles it."""
