"""`moldau bench`: one module per benchmark, each with a baseline measured in the same run."""
