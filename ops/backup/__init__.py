"""`moldau backup` and `moldau restore`: copies of an embedded store, taken while it runs."""
