"""The state machine of transactions: pure, without I/O and without a clock. See README.md."""
