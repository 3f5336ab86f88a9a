"""The state machine of transactions: pure functions without I/O or clock. See README.md."""
