"""The topics of the cluster."""
