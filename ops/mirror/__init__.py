"""`moldau mirror`: topics of another cluster, at their own offsets (README.md)."""
