"""Runs the state machine of share-partitions (`broker/share`): takes, stores, times, drops them."""
