"""The state of a log: a fold over its entries, and how it is loaded."""
