"""Tools of operators: the `moldau` command, the embedded store, the set-up scripts."""
