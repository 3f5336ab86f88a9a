"""What an operator runs: the `moldau` command, the embedded store, the set-up scripts."""
