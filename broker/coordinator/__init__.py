"""The shell around the state machine of groups: timers, writes to the store, group events."""
